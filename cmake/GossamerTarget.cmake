# gossamer_library(base SOURCES a.cpp DEPENDS Threads::Threads)
#
# A static library per folder, gossamer::base, with the project's warnings. Sources include each
# other from the project's root, as "base/error.hpp".

add_library(gossamer_flags INTERFACE)
target_compile_options(gossamer_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow>)
if(GOSSAMER_WERROR)
  target_compile_options(gossamer_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(GOSSAMER_SANITIZE)
  target_compile_options(gossamer_flags INTERFACE -fsanitize=${GOSSAMER_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer
                         # They take a fifth of the compiler's time. What a null pointer leads to, the
                         # address sanitizer stops, and these processors read numbers at any address.
                         -fno-sanitize=null,alignment
                         # The tests' own code is not what is checked, and the checks take the compiler long.
                         $<$<BOOL:$<TARGET_PROPERTY:GOSSAMER_IS_TEST>>:-fno-sanitize=undefined>
                         # GCC 12 sees them in the standard library, where there are none.
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(gossamer_flags INTERFACE -fsanitize=${GOSSAMER_SANITIZE})
endif()

# The language level, include path and warnings of every target of ours.
function(gossamer_target name)
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${name} PUBLIC
    "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:gossamer_flags>)
endfunction()

function(gossamer_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(gossamer_${name} STATIC ${ARG_SOURCES})
  add_library(gossamer::${name} ALIAS gossamer_${name})
  set_target_properties(gossamer_${name} PROPERTIES EXPORT_NAME ${name})
  gossamer_target(gossamer_${name})
  gossamer_gather(gossamer_${name})
  target_link_libraries(gossamer_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
endfunction()

# gossamer_gather(TARGET): with GOSSAMER_UNITY the target's sources are compiled together, up to 16 at a
# time, so that the headers which they share are read once.
function(gossamer_gather target)
  if(GOSSAMER_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endif()
endfunction()

# gossamer_precompile(TARGET): the target's sources include LibTorch, which it must link. They are
# compiled together, up to 28 at a time, because the headers of LibTorch alone take 10 seconds. Without
# GOSSAMER_UNITY they are compiled with the headers of cmake/precompiled.hpp, which are compiled once.
function(gossamer_precompile target)
  if(GOSSAMER_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 28)
    return()
  endif()
  # ccache needs -fpch-preprocess.
  set(flag $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  if(NOT TARGET gossamer_precompiled)
    file(WRITE "${CMAKE_BINARY_DIR}/precompiled.cpp" "")
    add_library(gossamer_precompiled OBJECT "${CMAKE_BINARY_DIR}/precompiled.cpp")
    gossamer_target(gossamer_precompiled)
    target_link_libraries(gossamer_precompiled PRIVATE LibTorch::cpu CLI11::CLI11
                          nlohmann_json::nlohmann_json)
    target_compile_options(gossamer_precompiled PRIVATE ${flag})
    target_precompile_headers(gossamer_precompiled PRIVATE "${CMAKE_SOURCE_DIR}/cmake/precompiled.hpp")
  endif()
  target_precompile_headers(${target} REUSE_FROM gossamer_precompiled)
  target_compile_options(${target} PRIVATE ${flag})
endfunction()
