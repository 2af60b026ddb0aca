// The ggml backends: modules loaded once from the package's own directory, their devices, and llama.cpp's log.
#pragma once

#include <ggml-backend.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace decider {

struct DeviceInfo {
    std::string name;         // "CPU", "Vulkan0", ...
    std::string description;  // the hardware's own name
    std::string kind;         // "cpu", "gpu", "igpu" or "accel"
    std::string backend;      // "CPU", "Vulkan", ...
    size_t memory_free;       // bytes
    size_t memory_total;      // bytes
};

// A backend module of the package.
struct ModuleInfo {
    std::string file;     // "libggml-vulkan.so"
    std::string backend;  // "Vulkan"; empty when the module is not in use
    std::string reason;   // why it is not
};

struct LogLine {
    int level;  // a ggml_log_level
    std::string text;
};

// Load the backend modules that lie in `directory`; later calls do nothing. Throws BackendError when no CPU device
// comes of it, naming the modules that did not load and why.
void load_backends(const std::filesystem::path & directory);

std::vector<DeviceInfo> devices();

// Every backend module in the directory that load_backends was given, by file name.
std::vector<ModuleInfo> modules();

// What the CPU module in use was compiled for, and other facts it tells: "AVX2" "1", ...
std::vector<std::pair<std::string, std::string>> cpu_features();

// A function of the CPU module by its name, for the module is loaded at run time; null when it has none such.
void * cpu_function(const char * name);

// The device a request names: "auto" (the first GPU, else the CPU), "cpu", a backend ("vulkan", "metal") or an exact
// device name ("Vulkan1"), in any case. Throws BackendError with the list of devices when there is none such.
ggml_backend_dev_t find_device(const std::string & request);

bool is_gpu(ggml_backend_dev_t device);

// llama.cpp's log lines since the last call, oldest first. They are collected, never printed; the newest thousand are
// kept. `set_log_level` sets the lowest level that is collected.
std::vector<LogLine> drain_log();
void set_log_level(int level);

// Holds back the warnings and errors that llama.cpp logs on this thread while it lives, for an error message. They
// reach the log when it goes, unless they were dropped. One at a time per thread.
class LogCapture {
  public:
    LogCapture();
    ~LogCapture();
    LogCapture(const LogCapture &) = delete;
    LogCapture & operator=(const LogCapture &) = delete;
    std::string errors() const;
    void drop() { lines_.clear(); }
    void add(LogLine line) { lines_.push_back(std::move(line)); }

  private:
    std::vector<LogLine> lines_;
};

// Do what opens something of llama.cpp and return what it logged or threw, for the error message where nothing is open
// then. An assertion that fails meanwhile is an exception too; elsewhere it ends the process. Only for what this thread
// does alone: workers would wait for it for ever.
std::string run_alone(const std::function<void()> & work);

}  // namespace decider
