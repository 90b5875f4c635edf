# NCCL_INCLUDE_DIR: the folder of nccl.h, if there is one: beside LibTorch or in Python's packages
# (NVIDIA's wheel), in the CUDA toolkit, or where the system has it. The library is not needed for
# building.

set(_nccl_hints ${CUDAToolkit_INCLUDE_DIRS})
if(Python_SITELIB)
  list(PREPEND _nccl_hints "${Python_SITELIB}/nvidia/nccl/include")
endif()
if(LibTorch_ROOT_DIR)
  list(PREPEND _nccl_hints "${LibTorch_ROOT_DIR}/../nvidia/nccl/include")
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_nccl_hints})
mark_as_advanced(NCCL_INCLUDE_DIR)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCLHeader REQUIRED_VARS NCCL_INCLUDE_DIR)
