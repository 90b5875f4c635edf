# Asio without Boost (Debian's libasio-dev): headers alone. Sets asio::asio. One thread runs each of our
# io_contexts, so it needs no memory fences, which the thread sanitizer does not know.
find_path(ASIO_INCLUDE_DIR NAMES asio.hpp)
if(ASIO_INCLUDE_DIR AND EXISTS "${ASIO_INCLUDE_DIR}/asio/version.hpp")
  file(STRINGS "${ASIO_INCLUDE_DIR}/asio/version.hpp" _line REGEX "^#define ASIO_VERSION ")
  string(REGEX REPLACE "^#define ASIO_VERSION ([0-9]+).*" "\\1" _number "${_line}")
  math(EXPR _major "${_number} / 100000")
  math(EXPR _minor "${_number} / 100 % 1000")
  math(EXPR _patch "${_number} % 100")
  set(Asio_VERSION "${_major}.${_minor}.${_patch}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Asio REQUIRED_VARS ASIO_INCLUDE_DIR VERSION_VAR Asio_VERSION)
mark_as_advanced(ASIO_INCLUDE_DIR)

if(Asio_FOUND AND NOT TARGET asio::asio)
  find_package(Threads REQUIRED)
  add_library(asio::asio INTERFACE IMPORTED)
  set_target_properties(asio::asio PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${ASIO_INCLUDE_DIR}"
                        INTERFACE_COMPILE_DEFINITIONS "ASIO_STANDALONE;ASIO_NO_DEPRECATED;ASIO_DISABLE_FENCED_BLOCK"
                        INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
