if(TARGET rdmaccl::rdmaccl)
  return()
endif()

# The folder of lib/cmake/rdmaccl: found relative to this file, so that it may be moved.
get_filename_component(_rdmaccl_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

add_library(rdmaccl::rdmaccl SHARED IMPORTED)
set_target_properties(rdmaccl::rdmaccl PROPERTIES
  IMPORTED_LOCATION "${_rdmaccl_prefix}/lib/librdmaccl.so.@VERSION@"
  IMPORTED_SONAME "librdmaccl.so.@MAJOR@"
  INTERFACE_INCLUDE_DIRECTORIES "${_rdmaccl_prefix}/include")

add_library(rdmaccl::rdmaccl_static STATIC IMPORTED)
set_target_properties(rdmaccl::rdmaccl_static PROPERTIES
  IMPORTED_LOCATION "${_rdmaccl_prefix}/lib/librdmaccl.a"
  IMPORTED_LINK_INTERFACE_LANGUAGES "C"
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m"
  INTERFACE_INCLUDE_DIRECTORIES "${_rdmaccl_prefix}/include")

unset(_rdmaccl_prefix)
