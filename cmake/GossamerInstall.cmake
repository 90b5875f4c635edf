# What `cmake --install` gives a user: the headers of a user's program below include/gossamer, static
# libraries, the program, and a CMake package (find_package(gossamer); target gossamer::torch).
#
# In the source tree headers include each other from the project's root ("base/error.hpp"). An
# installed header is a copy whose includes have the prefix gossamer/, so that no other project's
# base/error.hpp can be taken for ours.

include(CMakePackageConfigHelpers)

# The headers that a user's program includes, and the headers that these include. A test compiles
# each of them alone (test/install).
set(_headers
  base/bfloat16.hpp base/buffer.hpp base/error.hpp base/host_device.hpp base/host_stream.hpp
  base/log.hpp base/options.hpp base/relay_stream.hpp base/stream.hpp base/types.hpp
  base/worker_pool.hpp
  comm/communicator.hpp comm/launch.hpp comm/nccl_api.hpp comm/request.hpp
  core/algorithm.hpp core/bucket.hpp core/bucket_plan.hpp core/gradient_policy.hpp
  core/model_average.hpp core/parameter_memory.hpp core/pipeline.hpp core/pipeline_metrics.hpp
  core/rank_device.hpp
  optim/block_update.hpp optim/gradient_control.hpp optim/optimizer.hpp optim/registry.hpp
  optim/schedule.hpp optim/simd.hpp
  topology/registry.hpp topology/topology.hpp)
set(_targets gossamer_base gossamer_topology gossamer_comm gossamer_optim gossamer_core)
if(GOSSAMER_TORCH)
  list(APPEND _targets gossamer_torch)
  list(APPEND _headers core/torch/data_parallel.hpp core/torch/graphed_step.hpp
       core/torch/step_graph.hpp core/torch/torch_stream.hpp)
  install(TARGETS gossamer RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  if(TARGET gossamer_torch_cuda)
    install(TARGETS gossamer_torch_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
endif()
install(TARGETS ${_targets} EXPORT gossamer-targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")

foreach(_header IN LISTS _headers)
  install(CODE "
    file(READ \"${CMAKE_SOURCE_DIR}/${_header}\" text)
    string(REPLACE \"#include \\\"\" \"#include \\\"gossamer/\" text \"\${text}\")
    set(to \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/gossamer/${_header}\")
    message(STATUS \"Installing: \${to}\")
    file(WRITE \"\$ENV{DESTDIR}\${to}\" \"\${text}\")")
endforeach()

set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/gossamer")
install(EXPORT gossamer-targets NAMESPACE gossamer:: DESTINATION "${_package}")
configure_package_config_file(cmake/gossamer-config.cmake.in
                              "${CMAKE_BINARY_DIR}/gossamer-config.cmake"
                              INSTALL_DESTINATION "${_package}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/gossamer-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/gossamer-config.cmake"
              "${CMAKE_BINARY_DIR}/gossamer-config-version.cmake" cmake/FindLibTorch.cmake
        DESTINATION "${_package}")
