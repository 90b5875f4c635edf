# The functions with which the folders of test/ declare their programs.

include(GoogleTest)
# Every test program, and not what else there is to build.
add_custom_target(gossamer_tests)

# Tests run MPI as users do: the settings are those of scripts/mpi_env.sh.
set(_mpi_settings "${CMAKE_SOURCE_DIR}/scripts/mpi_env.sh")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_mpi_settings}")
file(STRINGS "${_mpi_settings}" GOSSAMER_MPI_ENVIRONMENT REGEX "^ *gossamer_default [A-Z]")
list(TRANSFORM GOSSAMER_MPI_ENVIRONMENT REPLACE "^ *gossamer_default ([A-Za-z_]+) (.+)$" "\\1=\\2")
if(NOT GOSSAMER_MPI_ENVIRONMENT)
  message(FATAL_ERROR "${_mpi_settings} has no line 'gossamer_default NAME VALUE'; the tests need them.")
endif()

# The project's own Python has packages that some tests use.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(GOSSAMER_TEST_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python")
if(NOT EXISTS "${GOSSAMER_TEST_PYTHON}")
  set(GOSSAMER_TEST_PYTHON "${Python3_EXECUTABLE}")
endif()

# A program that tests run; gossamer_tests builds it.
function(gossamer_test_program target)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${target} ${ARG_SOURCES})
  gossamer_target(${target})
  set_target_properties(${target} PROPERTIES GOSSAMER_IS_TEST ON RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/test")
  target_link_libraries(${target} PRIVATE ${ARG_DEPENDS})
  add_dependencies(gossamer_tests ${target})
endfunction()

# What tests of several programs share is compiled once.
function(gossamer_test_library target)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${target} STATIC ${ARG_SOURCES})
  gossamer_target(${target})
  gossamer_gather(${target})
  set_target_properties(${target} PROPERTIES GOSSAMER_IS_TEST ON)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${target} PUBLIC ${ARG_DEPENDS})
endfunction()

# gossamer_test(NAME optim SOURCES a_test.cpp DEPENDS gossamer::optim [LABELS gpu] [LIBTORCH])
#   the program test_optim, whose tests ctest runs.
#   LIBTORCH: the sources include LibTorch.
#   ctest sees every test of the program, or with GOSSAMER_TEST_SHARDS=4 four processes, each of which runs a quarter of
#   its tests. Suites whose names begin with "Wide" run apart: ctest --preset wide.
function(gossamer_test)
  cmake_parse_arguments(ARG "LIBTORCH" "NAME;LABELS" "SOURCES;DEPENDS" ${ARGN})
  if(GOSSAMER_WATCHED AND NOT ARG_NAME IN_LIST GOSSAMER_WATCHED)
    return()
  endif()
  set(target test_${ARG_NAME})
  gossamer_test_program(${target} SOURCES ${ARG_SOURCES} DEPENDS ${ARG_DEPENDS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE GOSSAMER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(ARG_LIBTORCH)
    gossamer_precompile(${target})
  else()
    gossamer_gather(${target})
  endif()
  if(GOSSAMER_UNITY)
    # What is tested is optimised, the tests need not be. Those with LibTorch compute in LibTorch, the others
    # with Eigen in their own objects. (Precompiled headers want options like theirs.)
    target_compile_options(${target} PRIVATE
      $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:$<IF:$<BOOL:${ARG_LIBTORCH}>,-O0,-O1>>)
  endif()
  if(GOSSAMER_TORCH)
    set_target_properties(${target} PROPERTIES BUILD_RPATH "${LIBTORCH_RPATH}")
  endif()
  list(JOIN GOSSAMER_TAKE_${ARG_NAME} ":" take)
  set(leave Wide* ${GOSSAMER_LEAVE_${ARG_NAME}})
  list(JOIN leave ":" leave)
  set(filter "${take}-${leave}")
  if(ARG_NAME IN_LIST GOSSAMER_WIDE)
    gossamer_test_shards(${ARG_NAME} wide "Wide*" 4 wide)
  endif()
  if(GOSSAMER_TEST_SHARDS)
    gossamer_test_shards(${ARG_NAME} shard "${filter}" ${GOSSAMER_TEST_SHARDS} ${ARG_LABELS})
    return()
  endif()
  # An empty value would take the next property's name for its own.
  set(properties)
  if(ARG_LABELS)
    set(properties LABELS "${ARG_LABELS}")
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${ARG_NAME}." TEST_FILTER "${filter}" DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 300 ${properties})
endfunction()

# gossamer_test_shards(NAME PREFIX FILTER NUM [LABELS...]): NUM processes that share the tests of
# test_NAME which FILTER takes.
function(gossamer_test_shards name prefix filter num)
  math(EXPR last "${num} - 1")
  foreach(shard RANGE ${last})
    gossamer_command_test(${name}.${prefix}_${shard} 1800 test_${name} "--gtest_filter=${filter}")
    # Those that take long begin first, so that none runs alone at the end.
    set_tests_properties(${name}.${prefix}_${shard} PROPERTIES LABELS "${ARGN}" COST 30
                         ENVIRONMENT "GTEST_TOTAL_SHARDS=${num};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()

# gossamer_command_test(NAME SECONDS COMMAND...): a command that returns 0, or 77 where the machine does not have what
# it needs.
function(gossamer_command_test name seconds)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds} SKIP_RETURN_CODE 77)
endfunction()

set(GOSSAMER_MPIRUN ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG})

# gossamer_mpi_test(NAME SECONDS COMMAND...): the same of a command that starts mpirun. The test looks at a clock, so
# few others run beside it, unless its PROCESSORS are set to 1.
function(gossamer_mpi_test name seconds)
  gossamer_command_test(${name} ${seconds} ${ARGN})
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "${GOSSAMER_MPI_ENVIRONMENT};MPIEXEC=${MPIEXEC_EXECUTABLE}" PROCESSORS 2 LABELS mpi
    # Open MPI has no frame pointers: only the slow unwinder sees its functions, which lsan.supp names.
    ENVIRONMENT_MODIFICATION "ASAN_OPTIONS=string_append::fast_unwind_on_malloc=0")
endfunction()
