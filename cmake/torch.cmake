# libtorch out of the wheel of the Python that REKNIT_PYTHON names. Written out
# here because the wheel's own package file insists on a CUDA toolkit.
if(NOT REKNIT_PYTHON)
  find_program(REKNIT_PYTHON python3 REQUIRED)
endif()
execute_process(
  COMMAND ${REKNIT_PYTHON} -c
          "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
  OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "no torch for ${REKNIT_PYTHON}: run ./dev setup, or pass -DREKNIT_PYTHON=")
endif()
get_filename_component(SITE_PACKAGES ${TORCH_DIR} DIRECTORY)
file(GLOB wheel_libraries LIST_DIRECTORIES true ${SITE_PACKAGES}/nvidia/*/lib)

add_library(torch INTERFACE)
target_include_directories(torch SYSTEM INTERFACE ${TORCH_DIR}/include)
target_link_libraries(torch INTERFACE ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
target_link_options(torch INTERFACE -Wl,--allow-shlib-undefined)
set(CMAKE_BUILD_RPATH ${TORCH_DIR}/lib ${wheel_libraries})
set(CMAKE_INSTALL_RPATH ${CMAKE_BUILD_RPATH})
