#pragma once
// Where the program's memory comes from.

namespace gossamer::apps {

/// Makes freed memory stay in the process. Gradients come and go in every step: given back to the
/// kernel, they fault in again page by page. Call it before anything allocates much.
void keep_freed_memory();

/// `jemalloc`, or `the C library's`.
const char* allocator_name();

}  // namespace gossamer::apps
