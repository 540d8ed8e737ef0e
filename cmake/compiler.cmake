# Warnings, sanitizers and the compiler cache: the same for every target.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(reknit_options INTERFACE)
target_compile_options(
  reknit_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror
                           -Wno-missing-field-initializers>)
if(CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ccache can only reuse objects built with a precompiled header with this.
  target_compile_options(reknit_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
if(REKNIT_CHECKED)
  target_compile_definitions(reknit_options INTERFACE REKNIT_CHECKED=1)
endif()
if(REKNIT_SANITIZE STREQUAL "address")
  set(sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-sanitize=vptr -fno-omit-frame-pointer)
elseif(REKNIT_SANITIZE STREQUAL "thread")
  set(sanitizer_flags -fsanitize=thread -fno-omit-frame-pointer)
endif()
if(sanitizer_flags)
  target_compile_options(reknit_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${sanitizer_flags}>")
  target_link_options(reknit_options INTERFACE ${sanitizer_flags})
endif()
