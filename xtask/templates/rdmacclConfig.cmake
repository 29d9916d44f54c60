# find_package(rdmaccl) gives rdmaccl::rdmaccl, the shared library, and rdmaccl::rdmaccl_static.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/rdmacclTargets.cmake")
