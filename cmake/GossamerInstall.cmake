# What `cmake --install` gives a user: the headers of a user's program below include/gossamer, static
# libraries, the program, and a CMake package (find_package(gossamer); targets gossamer::torch and
# gossamer::program).
#
# In the source tree headers include each other from the project's root ("base/error.hpp"). An
# installed header is a copy whose includes have the prefix gossamer/, so that no other project's
# base/error.hpp can be taken for ours.

include(CMakePackageConfigHelpers)

# What a user's program includes. The headers that these include are found when they are installed,
# so the list need not grow with them. A test compiles each installed header alone (test/install).
set(_headers base/host_stream.hpp comm/backends.hpp comm/session.hpp core/algorithms/bucket_lanes.hpp core/checkpoint/state_file.hpp
    core/bucket/model_average.hpp core/step/pipeline.hpp comm/device/rank_device.hpp optim/codecs/small_float.hpp optim/registry.hpp
    optim/sweep.hpp topology/registry.hpp)
set(_targets gossamer_base gossamer_topology gossamer_comm gossamer_optim gossamer_exchange gossamer_core gossamer_checkpoint)
if(GOSSAMER_TORCH)
  list(APPEND _targets gossamer_torch)
  list(APPEND _headers core/torch/data_parallel.hpp core/torch/graphed_step.hpp)
  # The program as a library, with all that it links.
  list(APPEND _targets gossamer_program gossamer_commands gossamer_spectrum gossamer_study gossamer_train gossamer_bench gossamer_step_bench
       gossamer_data gossamer_plan gossamer_records gossamer_replay gossamer_report gossamer_simulate gossamer_virtual_ranks
       gossamer_topology_report gossamer_trace)
  list(APPEND _headers apps/program/program.hpp)
  install(TARGETS gossamer RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
  if(TARGET gossamer_torch_cuda)
    install(TARGETS gossamer_torch_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
endif()
install(TARGETS ${_targets} EXPORT gossamer-targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")

# For the package's configuration. It was found in the folder of the program.
if(GOSSAMER_TORCH)
  find_package(Jemalloc QUIET)
endif()

install(CODE "
  set(headers ${_headers})
  set(source \"${CMAKE_SOURCE_DIR}\")
  set(to \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/gossamer\")
  include(\"${CMAKE_CURRENT_LIST_DIR}/InstallHeaders.cmake\")")

set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/gossamer")
install(EXPORT gossamer-targets NAMESPACE gossamer:: DESTINATION "${_package}")
configure_package_config_file(cmake/gossamer-config.cmake.in
                              "${CMAKE_BINARY_DIR}/gossamer-config.cmake"
                              INSTALL_DESTINATION "${_package}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/gossamer-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/gossamer-config.cmake"
              "${CMAKE_BINARY_DIR}/gossamer-config-version.cmake" cmake/FindLibTorch.cmake
              cmake/FindJemalloc.cmake
        DESTINATION "${_package}")
