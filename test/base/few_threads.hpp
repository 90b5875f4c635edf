#pragma once
// Lets the system run out of threads.

namespace gossamer {

/// While it lives, the process can start `num_threads` more threads, and then none.
class FewThreads {
 public:
  explicit FewThreads(int num_threads);
  ~FewThreads();
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;
};

}  // namespace gossamer
