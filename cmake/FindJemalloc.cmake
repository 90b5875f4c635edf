# Jemalloc::jemalloc, if libjemalloc and its header are there (Debian: libjemalloc-dev).

find_path(JEMALLOC_INCLUDE_DIR jemalloc/jemalloc.h)
find_library(JEMALLOC_LIBRARY jemalloc)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Jemalloc REQUIRED_VARS JEMALLOC_LIBRARY JEMALLOC_INCLUDE_DIR)
mark_as_advanced(JEMALLOC_INCLUDE_DIR JEMALLOC_LIBRARY)
if(Jemalloc_FOUND AND NOT TARGET Jemalloc::jemalloc)
  add_library(Jemalloc::jemalloc UNKNOWN IMPORTED)
  set_target_properties(Jemalloc::jemalloc PROPERTIES
    IMPORTED_LOCATION "${JEMALLOC_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${JEMALLOC_INCLUDE_DIR}")
endif()
