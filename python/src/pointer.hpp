#pragma once
// Addresses as Python gives them.

#include <cstdint>

namespace gossamer::python {

/// The object at an address that Python gives as a number.
inline void* pointer_to(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace gossamer::python
