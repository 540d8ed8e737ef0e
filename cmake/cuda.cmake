# The CUDA compiler and the parts of torch and NCCL that need it.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
find_path(NCCL_INCLUDE nccl.h HINTS ${SITE_PACKAGES}/nvidia/nccl/include ${SITE_PACKAGES}/nvidia/cu13/include REQUIRED)
find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${SITE_PACKAGES}/nvidia/nccl/lib ${SITE_PACKAGES}/nvidia/cu13/lib REQUIRED)

add_library(torch_cuda INTERFACE)
target_link_libraries(
  torch_cuda
  INTERFACE torch -Wl,--no-as-needed ${TORCH_DIR}/lib/libtorch_cuda.so ${TORCH_DIR}/lib/libc10_cuda.so
            -Wl,--as-needed CUDA::cudart)
add_library(nccl INTERFACE)
target_include_directories(nccl SYSTEM INTERFACE ${NCCL_INCLUDE})
target_link_libraries(nccl INTERFACE ${NCCL_LIBRARY})

# cuDNN is a part of torch's wheels; its C++ front end is headers only.
find_path(CUDNN_INCLUDE cudnn.h HINTS ${SITE_PACKAGES}/nvidia/cudnn/include REQUIRED)
find_library(CUDNN_LIBRARY NAMES libcudnn.so.9 cudnn HINTS ${SITE_PACKAGES}/nvidia/cudnn/lib REQUIRED)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${SITE_PACKAGES}/include REQUIRED)
add_library(cudnn INTERFACE)
target_include_directories(cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE} ${CUDNN_FRONTEND_INCLUDE})
target_compile_definitions(cudnn INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB=1)
target_link_libraries(cudnn INTERFACE ${CUDNN_LIBRARY} CUDA::nvrtc)
