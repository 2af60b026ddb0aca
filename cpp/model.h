// One GGUF file: weights on a device, vocabulary, label tokens, metadata.
#pragma once

#include "plan.h"

#include <ggml-backend.h>
#include <llama.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace decider {

struct ModelOptions {
    std::string path;
    std::string device = "auto";    // as find_device reads it
    std::optional<int> gpu_layers;  // layers on the GPU; none: all of them
    std::optional<bool> exact;      // rows never depend on each other; none: exact unless a GPU does the work
};

// Immutable once loaded; every member may be used from any thread.
class Model {
  public:
    // Throws ModelLoadError when the file is no model that can answer, BackendError when there is no such device.
    explicit Model(const ModelOptions & options);

    // Token ids of `text` on its own, without BOS. With `parse_special` the text of control tokens becomes those
    // tokens; without it everything is plain text, user-defined markup tokens such as <think> included.
    std::vector<Token> tokenize(std::string_view text, bool parse_special) const;

    std::string detokenize(std::span<const Token> tokens) const;

    // Tokens of the labels A..Z, AA..ZZ that the vocabulary holds as one token, in that order, at most 255.
    const std::vector<Token> & labels() const { return labels_; }

    std::map<std::string, std::string> metadata() const;
    std::string chat_template() const;           // empty: the file holds none
    std::string description() const;             // architecture, size and quantization in llama.cpp's words
    std::optional<Token> leading_token() const;  // the BOS token, where the vocabulary wants a text to start with it
    size_t longest_token_bytes() const { return longest_token_bytes_; }
    int vocabulary_size() const { return llama_vocab_n_tokens(vocabulary_); }
    int trained_context() const { return llama_model_n_ctx_train(model_.get()); }
    int attention_heads() const { return llama_model_n_head(model_.get()); }
    ggml_type cache_type() const;    // of keys and values: as precise as the weights, but never smaller than F16
    size_t cell_bytes() const;       // keys and values of one token, at most
    size_t recurrent_bytes() const;  // what a sequence keeps besides, however long it is
    uint64_t parameters() const { return llama_model_n_params(model_.get()); }
    uint64_t size_bytes() const { return llama_model_size(model_.get()); }
    std::string device() const { return ggml_backend_dev_name(device_); }
    std::string device_description() const { return ggml_backend_dev_description(device_); }
    bool on_gpu() const { return on_gpu_; }
    bool exact() const { return exact_; }

    llama_model * get() const { return model_.get(); }

  private:
    size_t number(const char * key, int otherwise) const;
    size_t attention_layers() const;
    void tokenize_segment(std::string_view text, bool parse_special, std::vector<Token> & out) const;
    std::vector<size_t> markup_breaks(std::string_view text) const;
    void scan_vocabulary();
    void prove_labels();

    struct Deleter {
        void operator()(llama_model * model) const { llama_model_free(model); }
    };

    ggml_backend_dev_t device_ = nullptr;
    bool on_gpu_ = false;
    bool exact_ = true;
    std::unique_ptr<llama_model, Deleter> model_;
    const llama_vocab * vocabulary_ = nullptr;
    std::vector<Token> labels_;
    std::unordered_set<std::string> markup_;  // texts of user-defined tokens other than white space
    std::vector<size_t> markup_lengths_;      // their distinct lengths
    size_t longest_token_bytes_ = 1;
};

// Write a quantized copy of the GGUF file `source` to `target` with llama.cpp's quantizer; `type` is a name such as
// "Q4_K_M" or "Q8_0". Throws InvalidRequest for an unknown name, BackendError when the quantizer fails.
void quantize(const std::string & source, const std::string & target, const std::string & type);

}  // namespace decider
