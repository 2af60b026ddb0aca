# Which backend modules are built: turns DECIDER_NATIVE_CPU, _VULKAN and _CUDA into ggml's own options.
#
# 'auto' builds what this machine can compile and says in one line what it left out and why; 'on' fails instead.

# What keeps a module from being compiled here goes to `missing`, which stays empty when nothing does.
function(look_for_vulkan missing)
  find_package(Vulkan QUIET COMPONENTS glslc)
  find_package(SPIRV-Headers CONFIG QUIET)
  if(NOT Vulkan_FOUND)
    set(reason "no Vulkan headers, loader library or glslc")
  elseif(NOT SPIRV-Headers_FOUND)
    set(reason "no SPIRV-Headers")
  else()
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_INCLUDES ${Vulkan_INCLUDE_DIRS})
    set(CMAKE_REQUIRED_QUIET ON)
    check_cxx_source_compiles("#include <vulkan/vulkan.hpp>
                               int main() { vk::LayerSettingEXT setting; (void)setting; }" vulkan_headers_${Vulkan_VERSION})
    if(NOT vulkan_headers_${Vulkan_VERSION})
      set(reason "the Vulkan headers (${Vulkan_VERSION}) are older than 1.3.275")
    endif()
  endif()
  set(${missing} "${reason}" PARENT_SCOPE)
endfunction()

function(look_for_cuda missing)
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    set(reason "no CUDA toolkit")
  elseif(NOT TARGET CUDA::cublas)
    set(reason "no cuBLAS beside the CUDA toolkit")
  elseif(NOT TARGET CUDA::cuda_driver AND NOT GGML_CUDA_NO_VMM)
    set(reason "no CUDA driver library nor its stub (GGML_CUDA_NO_VMM=ON does without)")
  endif()
  set(${missing} "${reason}" PARENT_SCOPE)
endfunction()

# GGML_<backend> from the user's choice and what is missing.
macro(choose_backend backend missing)
  set(choice "${DECIDER_NATIVE_${backend}}")
  if(NOT choice MATCHES "^(auto|on|off)$")
    message(FATAL_ERROR "DECIDER_NATIVE_${backend} is '${choice}'; use 'auto', 'on' or 'off'")
  elseif(choice STREQUAL "off")
    set(GGML_${backend} OFF)
  elseif("${missing}" STREQUAL "")
    set(GGML_${backend} ON)
  elseif(choice STREQUAL "on")
    message(FATAL_ERROR "DECIDER_NATIVE_${backend}=on, but there is ${missing}")
  else()
    message(STATUS "decider_native: no ${backend} module: ${missing}")
    set(GGML_${backend} OFF)
  endif()
endmacro()

if(DECIDER_NATIVE_CPU STREQUAL "native")
  # One module for the machine that builds: what `-march=native` defines, said in ggml's own options.
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null
                  OUTPUT_VARIABLE native_macros RESULT_VARIABLE native_failed ERROR_QUIET)
  foreach(pair SSE42:SSE4_2 AVX:AVX AVX2:AVX2 BMI2:BMI2 FMA:FMA F16C:F16C AVX_VNNI:AVXVNNI AVX512:AVX512BW
          AVX512_VBMI:AVX512VBMI AVX512_VNNI:AVX512VNNI AVX512_BF16:AVX512BF16)
    string(REGEX REPLACE ":.*" "" feature ${pair})
    string(REGEX REPLACE ".*:" "" macro ${pair})
    if(NOT native_failed AND native_macros MATCHES "__${macro}__")
      set(GGML_${feature} ON)
    else()
      set(GGML_${feature} OFF)
    endif()
  endforeach()
elseif(DECIDER_NATIVE_CPU STREQUAL "variants")
  set(GGML_CPU_ALL_VARIANTS ON)
else()
  message(FATAL_ERROR "DECIDER_NATIVE_CPU is '${DECIDER_NATIVE_CPU}'; use 'native' or 'variants'")
endif()

if(NOT DECIDER_NATIVE_VULKAN STREQUAL "off")
  look_for_vulkan(vulkan_missing)
endif()
choose_backend(VULKAN "${vulkan_missing}")
if(NOT DECIDER_NATIVE_CUDA STREQUAL "off")
  look_for_cuda(cuda_missing)
endif()
choose_backend(CUDA "${cuda_missing}")
set(GGML_CUDA_NCCL OFF)            # one model runs on one device
set(GGML_METAL_EMBED_LIBRARY ON)   # no shader file beside the module
