# find_package(LibTorch 2.6)
#
# Finds LibTorch in PyPI's torch wheel or in a LibTorch tree. Torch's own CMake package asks for
# the CUDA toolkit that the wheel was made with; this module does not.
#
# A LibTorch is a folder with lib/libtorch_cpu.so and include/torch. The first one wins:
#   1. LIBTORCH_ROOT, the CMake variable, then the environment variable: if set, nothing else counts
#   2. each entry of CMAKE_PREFIX_PATH, the CMake variable, then the environment variable
#   3. where the last run of CMake in this build folder found it
#   4. the project's .venv
#   5. the torch of the python3 on PATH
# In 1 and 2 an entry may be the folder itself, the folder above it (site-packages), its
# share/cmake (torch.utils.cmake_prefix_path), or a Python environment.
#
# Gives
#   LibTorch::cpu         headers, libtorch_cpu and libc10
#   LibTorch::nccl        only if NVIDIA's NCCL wheel lies beside torch
#   LibTorch_VERSION, LibTorch_NCCL_VERSION
#   LibTorch_ROOT_DIR     the folder; LIBTORCH_ROOT is set to it as well
#   LIBTORCH_RPATH        folders for BUILD_RPATH and INSTALL_RPATH

# The LibTorch folders that an entry of a search path may mean.
function(_libtorch_candidates out)
  set(_found "")
  foreach(_entry IN LISTS ARGN)
    file(TO_CMAKE_PATH "${_entry}" _entry)
    file(GLOB _python_folders "${_entry}/lib/python3*/site-packages/torch")
    foreach(_folder "${_entry}" "${_entry}/torch" "${_entry}/../.." ${_python_folders})
      if(EXISTS "${_folder}/lib/libtorch_cpu.so" AND EXISTS "${_folder}/include/torch")
        get_filename_component(_folder "${_folder}" ABSOLUTE)
        list(APPEND _found "${_folder}")
      endif()
    endforeach()
  endforeach()
  set(${out} "${_found}" PARENT_SCOPE)
endfunction()

# Sets `root` to the first LibTorch, and `report` to what was searched.
function(_libtorch_search root report)
  set(_root "")
  set(_report "")

  set(_given "${LIBTORCH_ROOT}")
  if(NOT _given)
    set(_given "$ENV{LIBTORCH_ROOT}")
  endif()
  if(_given)
    _libtorch_candidates(_root "${_given}")
    set(_report "  LIBTORCH_ROOT = ${_given}\n  (while it is set, no other place is searched)\n")
  else()
    set(_prefixes "$ENV{CMAKE_PREFIX_PATH}")
    string(REPLACE ":" ";" _prefixes "${_prefixes}")
    list(PREPEND _prefixes ${CMAKE_PREFIX_PATH})
    list(REMOVE_ITEM _prefixes "")
    _libtorch_candidates(_root ${_prefixes})
    list(JOIN _prefixes " " _shown)
    if(NOT _shown)
      set(_shown "not set")
    endif()
    string(APPEND _report "  LIBTORCH_ROOT: not set\n  CMAKE_PREFIX_PATH: ${_shown}\n")

    if(NOT _root)
      _libtorch_candidates(_root ${LIBTORCH_LAST_FOUND} "${CMAKE_SOURCE_DIR}/.venv")
      string(APPEND _report "  the project's environment: ${CMAKE_SOURCE_DIR}/.venv\n")
    endif()
    if(NOT _root)
      find_program(_libtorch_python NAMES python3 NO_CACHE)
      if(_libtorch_python)
        execute_process(
          COMMAND "${_libtorch_python}" -c "import importlib.util as u
print(next(iter(u.find_spec('torch').submodule_search_locations)))"
          OUTPUT_VARIABLE _folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        if(_folder)
          _libtorch_candidates(_root "${_folder}")
        endif()
        string(APPEND _report "  the torch of ${_libtorch_python}\n")
      else()
        string(APPEND _report "  python3's torch: there is no python3 on PATH\n")
      endif()
    endif()
  endif()

  if(_root)
    list(GET _root 0 _root)
  endif()
  set(${root} "${_root}" PARENT_SCOPE)
  set(${report} "${_report}" PARENT_SCOPE)
endfunction()

# The version that <root>'s headers state, or nothing.
function(_libtorch_version out root)
  set(${out} "" PARENT_SCOPE)
  foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/${_header}")
      file(STRINGS "${root}/include/${_header}" _lines
           REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      list(TRANSFORM _lines REPLACE "^#define [A-Z_]+ +([0-9]+).*" "\\1")
      list(LENGTH _lines _count)
      if(_count EQUAL 3)
        list(JOIN _lines "." _version)
        set(${out} "${_version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# Why <root> cannot be used, or nothing.
function(_libtorch_refusal out root version)
  set(${out} "" PARENT_SCOPE)
  if(NOT version)
    set(${out} "  ${root}/include has no version.h of LibTorch: the tree is not complete.\n"
        PARENT_SCOPE)
  elseif(version VERSION_LESS 2.6)
    set(${out} "  ${root} is LibTorch ${version}. At least 2.6 is needed.\n" PARENT_SCOPE)
  else()
    # Libraries with the C++11 ABI have std::__cxx11::basic_string in their symbols.
    file(STRINGS "${root}/lib/libc10.so" _symbols REGEX "7__cxx1112basic_string" LIMIT_COUNT 1)
    if(NOT _symbols)
      string(CONCAT _text
        "  ${root} (LibTorch ${version}) was built with the old C++ ABI\n"
        "  (_GLIBCXX_USE_CXX11_ABI=0), which does not link with the system's C++ libraries.\n"
        "  Take a build with the C++11 ABI: PyPI's torch from 2.7 on has it.\n")
      set(${out} "${_text}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# The NCCL wheel beside torch.
function(_libtorch_find_nccl root)
  get_filename_component(_nccl "${root}/../nvidia/nccl" ABSOLUTE)
  if(NOT EXISTS "${_nccl}/include/nccl.h" OR NOT EXISTS "${_nccl}/lib/libnccl.so.2")
    return()
  endif()
  file(STRINGS "${_nccl}/include/nccl.h" _lines
       REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  list(TRANSFORM _lines REPLACE "^#define [A-Z_]+ +([0-9]+).*" "\\1")
  list(JOIN _lines "." _version)
  set(LibTorch_NCCL_VERSION "${_version}" PARENT_SCOPE)
  if(NOT TARGET LibTorch::nccl)
    add_library(LibTorch::nccl SHARED IMPORTED)
    set_target_properties(LibTorch::nccl PROPERTIES
      IMPORTED_LOCATION "${_nccl}/lib/libnccl.so.2"
      IMPORTED_SONAME libnccl.so.2
      INTERFACE_INCLUDE_DIRECTORIES "${_nccl}/include")
  endif()
endfunction()

unset(LibTorch_VERSION)
unset(LibTorch_NCCL_VERSION)
unset(LIBTORCH_RPATH)
_libtorch_search(LibTorch_ROOT_DIR _libtorch_report)

set(_libtorch_reason "")
if(LibTorch_ROOT_DIR)
  _libtorch_version(LibTorch_VERSION "${LibTorch_ROOT_DIR}")
  _libtorch_refusal(_libtorch_reason "${LibTorch_ROOT_DIR}" "${LibTorch_VERSION}")
  if(_libtorch_reason)
    set(LibTorch_ROOT_DIR "")
  endif()
else()
  string(CONCAT _libtorch_reason
    "  No folder with lib/libtorch_cpu.so and include/torch was found. Searched:\n"
    "${_libtorch_report}")
endif()
if(_libtorch_reason)
  string(CONCAT _libtorch_reason "\n${_libtorch_reason}"
    "  What to do: set LIBTORCH_ROOT to a LibTorch folder, for example\n"
    "    cmake ... -DLIBTORCH_ROOT=/path/to/site-packages/torch\n")
  if(EXISTS "${CMAKE_SOURCE_DIR}/scripts/requirements-libtorch.txt")
    string(APPEND _libtorch_reason
      "  or let scripts/setup.sh install one into ${CMAKE_SOURCE_DIR}/.venv\n")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${_libtorch_reason}")

if(LibTorch_FOUND)
  set(LIBTORCH_LAST_FOUND "${LibTorch_ROOT_DIR}" CACHE INTERNAL "LibTorch of the last run")
  set(LIBTORCH_ROOT "${LibTorch_ROOT_DIR}")

  # Where libtorch_cpu.so finds what it was linked with: its own folder, and NVIDIA's wheels.
  get_filename_component(_libtorch_site "${LibTorch_ROOT_DIR}/.." ABSOLUTE)
  file(GLOB _libtorch_nvidia LIST_DIRECTORIES TRUE "${_libtorch_site}/nvidia/*/lib")
  set(LIBTORCH_RPATH "${LibTorch_ROOT_DIR}/lib" ${_libtorch_nvidia})

  if(NOT TARGET LibTorch::cpu)
    add_library(LibTorch::c10 SHARED IMPORTED)
    set_target_properties(LibTorch::c10 PROPERTIES
      IMPORTED_LOCATION "${LibTorch_ROOT_DIR}/lib/libc10.so"
      IMPORTED_SONAME libc10.so
      INTERFACE_INCLUDE_DIRECTORIES
        "${LibTorch_ROOT_DIR}/include;${LibTorch_ROOT_DIR}/include/torch/csrc/api/include")

    add_library(LibTorch::cpu SHARED IMPORTED)
    set_target_properties(LibTorch::cpu PROPERTIES
      IMPORTED_LOCATION "${LibTorch_ROOT_DIR}/lib/libtorch_cpu.so"
      IMPORTED_SONAME libtorch_cpu.so
      INTERFACE_LINK_LIBRARIES LibTorch::c10)
    list(TRANSFORM LIBTORCH_RPATH PREPEND "-Wl,-rpath-link," OUTPUT_VARIABLE _libtorch_link)
    set_property(TARGET LibTorch::cpu PROPERTY INTERFACE_LINK_OPTIONS ${_libtorch_link})

    # The definitions that torch_cpu's users see, as the tree itself states them.
    set(_libtorch_targets "${LibTorch_ROOT_DIR}/share/cmake/Caffe2/Caffe2Targets.cmake")
    if(EXISTS "${_libtorch_targets}")
      file(READ "${_libtorch_targets}" _libtorch_text)
      if(_libtorch_text MATCHES
         "set_target_properties\\(torch_cpu PROPERTIES[ \n]+INTERFACE_COMPILE_DEFINITIONS \"([^\"]*)\"")
        set_property(TARGET LibTorch::cpu
                     PROPERTY INTERFACE_COMPILE_DEFINITIONS "${CMAKE_MATCH_1}")
      endif()
      unset(_libtorch_text)
    endif()
  endif()
  _libtorch_find_nccl("${LibTorch_ROOT_DIR}")
endif()
unset(_libtorch_report)
unset(_libtorch_reason)
