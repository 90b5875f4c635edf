# gossamer_library(base SOURCES a.cpp DEPENDS Threads::Threads)
#
# A static library per folder, gossamer::base, with the project's warnings. Sources include each
# other as "gossamer/<folder>/<file>.hpp"; that is also how installed headers are found. In the
# build tree the prefix comes from links below build/<preset>/include/gossamer.

set(_forward "${CMAKE_BINARY_DIR}/include/gossamer")
file(MAKE_DIRECTORY "${_forward}")
foreach(_folder core topology comm optim apps)
  if(NOT EXISTS "${_forward}/${_folder}")
    file(CREATE_LINK "${CMAKE_SOURCE_DIR}/${_folder}" "${_forward}/${_folder}" SYMBOLIC)
  endif()
endforeach()

add_library(gossamer_flags INTERFACE)
target_compile_options(gossamer_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow>)
if(GOSSAMER_WERROR)
  target_compile_options(gossamer_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(GOSSAMER_SANITIZE)
  target_compile_options(gossamer_flags INTERFACE -fsanitize=${GOSSAMER_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(gossamer_flags INTERFACE -fsanitize=${GOSSAMER_SANITIZE})
endif()

# The language level, include path and warnings of every target of ours.
function(gossamer_target name)
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${name} PUBLIC
    "$<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:gossamer_flags>)
endfunction()

function(gossamer_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(gossamer_${name} STATIC ${ARG_SOURCES})
  add_library(gossamer::${name} ALIAS gossamer_${name})
  set_target_properties(gossamer_${name} PROPERTIES EXPORT_NAME ${name})
  gossamer_target(gossamer_${name})
  target_link_libraries(gossamer_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
endfunction()
