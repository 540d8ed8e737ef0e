# libtorch out of a torch wheel: of the folder REKNIT_TORCH_DIR if given, else of the Python that
# REKNIT_PYTHON names. Written out here because the wheel's own package file insists on a CUDA
# toolkit. An installed Reknit carries this file and finds torch the same way.
if(NOT REKNIT_PYTHON)
  find_program(REKNIT_PYTHON python3)
endif()
if(REKNIT_TORCH_DIR)
  set(TORCH_DIR ${REKNIT_TORCH_DIR})
else()
  execute_process(
    COMMAND ${REKNIT_PYTHON} -c
            "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
    OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "no torch in '${TORCH_DIR}' (Python: ${REKNIT_PYTHON}): pass -DREKNIT_PYTHON= "
                      "or -DREKNIT_TORCH_DIR=, or run ./dev setup")
endif()
get_filename_component(SITE_PACKAGES ${TORCH_DIR} DIRECTORY)
file(GLOB wheel_libraries LIST_DIRECTORIES true ${SITE_PACKAGES}/nvidia/*/lib)

add_library(torch INTERFACE)
target_include_directories(torch SYSTEM INTERFACE ${TORCH_DIR}/include)
target_link_libraries(torch INTERFACE ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
target_link_options(torch INTERFACE -Wl,--allow-shlib-undefined)
list(APPEND CMAKE_BUILD_RPATH ${TORCH_DIR}/lib ${wheel_libraries})
list(APPEND CMAKE_INSTALL_RPATH ${TORCH_DIR}/lib ${wheel_libraries})
