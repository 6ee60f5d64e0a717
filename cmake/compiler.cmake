# Warnings, sanitizers and link options for our own targets. Third-party headers are SYSTEM includes.
# `handoff_compile_options` is linked by every target of ours.
find_package(Threads REQUIRED)

add_library(handoff_compile_options INTERFACE)
target_compile_options(
  handoff_compile_options
  INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
            -Woverloaded-virtual -Werror -ffunction-sections -fdata-sections)
target_link_options(handoff_compile_options INTERFACE -Wl,--gc-sections)
target_include_directories(handoff_compile_options INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(handoff_compile_options INTERFACE Threads::Threads)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these inside the standard library and in coroutine frames, where we can do nothing about them.
  target_compile_options(handoff_compile_options INTERFACE -Wno-maybe-uninitialized -Wno-restrict -Wno-dangling-pointer
                                                           -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds
                                                           -Wno-mismatched-new-delete)
endif()

if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # In a unity build every file is "included", so types in unnamed namespaces look as if they were in a header.
  target_compile_options(handoff_compile_options INTERFACE -Wno-subobject-linkage)
endif()

if(HANDOFF_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Asio has fences, which GCC's ThreadSanitizer does not model; it says so once per use.
  add_compile_options(-Wno-tsan)
endif()
if(HANDOFF_SANITIZE)
  add_compile_options(-fsanitize=${HANDOFF_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HANDOFF_SANITIZE})
endif()

find_program(HANDOFF_CCACHE ccache)
if(HANDOFF_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${HANDOFF_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HANDOFF_CCACHE})
endif()
