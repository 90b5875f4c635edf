# GOSSAMER_CUDA=ON|OFF|AUTO: sets GOSSAMER_WITH_CUDA and, if that is on, enables the CUDA language.
# AUTO builds for GPUs where this machine has one and a CUDA compiler: the kernels take a minute.
#
# What is built runs everywhere: it is linked with the CUDA runtime and nothing else; driver and NCCL
# are looked for when they are used. The program shares the runtime of LibTorch, whose CPU library
# needs it anyway. Without LibTorch the runtime is inside, so that a module of Python loads where
# there is none; it meets PyTorch's own in the driver.

set(GOSSAMER_CUDA AUTO CACHE STRING "Build for NVIDIA GPUs: ON, OFF or AUTO (where there is a GPU and nvcc)")
set_property(CACHE GOSSAMER_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GOSSAMER_WITH_CUDA OFF)

if(GOSSAMER_CUDA STREQUAL "AUTO" OR GOSSAMER_CUDA)
  # Sanitizers do not see what a GPU does, and nvcc does not know their options.
  if(GOSSAMER_CUDA STREQUAL "AUTO" AND (GOSSAMER_SANITIZE OR NOT EXISTS /dev/nvidia0))
    set(_gossamer_nvcc NOTFOUND)
  else()
    include(CheckLanguage)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      # Ampere and Hopper, and PTX for what comes after.
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPU architectures")
    endif()
    check_language(CUDA)
    set(_gossamer_nvcc ${CMAKE_CUDA_COMPILER})
    if(_gossamer_nvcc AND GOSSAMER_CUDA STREQUAL "AUTO")
      execute_process(COMMAND ${_gossamer_nvcc} --version OUTPUT_VARIABLE _gossamer_version)
      if(NOT _gossamer_version MATCHES "release ([0-9.]+)" OR CMAKE_MATCH_1 VERSION_LESS 12.5)
        message(STATUS "GPUs: nvcc is ${CMAKE_MATCH_1}, and 12.5 or newer is needed")
        set(_gossamer_nvcc NOTFOUND)
      endif()
    endif()
  endif()
  if(_gossamer_nvcc)
    if(GOSSAMER_TORCH)
      set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
      set(GOSSAMER_CUDA_RUNTIME CUDA::cudart)
    else()
      set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
      set(GOSSAMER_CUDA_RUNTIME CUDA::cudart_static)
    endif()
    if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit 12.5 REQUIRED)
    # CMake 3.25 does not know how nvcc is told of C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
      set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
    endif()
    set(GOSSAMER_WITH_CUDA ON)
  elseif(NOT GOSSAMER_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR
      "GOSSAMER_CUDA is ${GOSSAMER_CUDA}, but no CUDA compiler was found. Put nvcc on PATH, set "
      "CUDACXX or CMAKE_CUDA_COMPILER, or leave GOSSAMER_CUDA out: without nvcc, gossamer is built "
      "for processors alone.")
  endif()
endif()
message(STATUS "GPUs: ${GOSSAMER_WITH_CUDA}")

# The language level and options of .cu files. Arithmetic is that of the processors: no fused multiply-adds, and
# denormals are zero except in the files of KEEP_DENORMALS. 186 is a loop over no states.
function(gossamer_cuda_sources target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" KEEP_DENORMALS)
  set(options --expt-relaxed-constexpr --fmad=false --diag-suppress=186 -Xcompiler=-Wall,-Wextra
              $<$<BOOL:${GOSSAMER_WERROR}>:--Werror=all-warnings>)
  target_sources(${target} PRIVATE ${arg_UNPARSED_ARGUMENTS} ${arg_KEEP_DENORMALS})
  target_compile_features(${target} PRIVATE cuda_std_20)
  set_source_files_properties(${arg_UNPARSED_ARGUMENTS} PROPERTIES COMPILE_OPTIONS "${options};--ftz=true")
  set_source_files_properties(${arg_KEEP_DENORMALS} PROPERTIES COMPILE_OPTIONS "${options};--ftz=false")
endfunction()
