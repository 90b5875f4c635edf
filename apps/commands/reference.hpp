#pragma once
// Prints configs/reference.yaml from the tables of sections and plug-ins.

#include <ostream>

namespace gossamer::apps {

/// A configuration with every key and its default. Keys that only some plug-ins have stand as
/// comments, unless the default plug-in has them.
void print_reference(std::ostream& out);

}  // namespace gossamer::apps
