# What `cmake --install` gives a user: headers below include/gossamer, static libraries, the
# program, and a CMake package (find_package(gossamer); target gossamer::torch).

include(CMakePackageConfigHelpers)

set(_targets gossamer_base gossamer_topology gossamer_comm gossamer_optim gossamer_engine)
set(_folders core/base core/engine topology comm optim)
if(GOSSAMER_TORCH)
  list(APPEND _targets gossamer_torch)
  list(APPEND _folders core/torch)
  install(TARGETS gossamer RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  if(TARGET gossamer_torch_cuda)
    install(TARGETS gossamer_torch_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
endif()

install(TARGETS ${_targets} EXPORT gossamer-targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
foreach(_folder IN LISTS _folders)
  install(DIRECTORY "${CMAKE_SOURCE_DIR}/${_folder}/"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/gossamer/${_folder}"
          FILES_MATCHING PATTERN "*.hpp")
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
