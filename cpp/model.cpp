#include "model.h"

#include "backend.h"
#include "errors.h"

#include <algorithm>
#include <array>
#include <climits>
#include <set>

namespace decider {
namespace {

constexpr size_t most_labels = 255;

// Two-letter labels come after the single letters, in alphabetical order.
std::vector<std::string> label_names() {
    std::vector<std::string> names;
    for (char a = 'A'; a <= 'Z'; ++a) {
        names.emplace_back(1, a);
    }
    for (char a = 'A'; a <= 'Z'; ++a) {
        for (char b = 'A'; b <= 'Z'; ++b) {
            names.push_back({a, b});
        }
    }
    return names;
}

bool only_white_space(std::string_view text) {
    return std::ranges::all_of(text, [](unsigned char c) { return std::isspace(c); });
}

bool starts_character(char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

}  // namespace

Model::Model(const ModelOptions & options) : device_(find_device(options.device)) {
    on_gpu_ = is_gpu(device_) && options.gpu_layers.value_or(1) != 0;
    exact_ = options.exact.value_or(!on_gpu_);
    ggml_backend_dev_t offload[] = {on_gpu_ ? device_ : nullptr, nullptr};
    if (!on_gpu_) {
        device_ = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    llama_model_params params = llama_model_default_params();
    params.devices = offload;
    params.n_gpu_layers = on_gpu_ ? options.gpu_layers.value_or(-1) : 0;
    params.use_extra_bufts = !exact_;  // repacked weights are multiplied in groups of rows, which neighbours change

    const std::string reason =
        run_alone([&] { model_.reset(llama_model_load_from_file(options.path.c_str(), params)); });
    if (!model_) {
        throw ModelLoadError("llama.cpp cannot load " + options.path + ": " + reason);
    }
    vocabulary_ = llama_model_get_vocab(model_.get());
    if (llama_vocab_type(vocabulary_) == LLAMA_VOCAB_TYPE_NONE) {
        throw ModelLoadError(options.path + " (" + description() +
                             ") holds no vocabulary; convert the model with its tokenizer");
    }
    if (!llama_model_has_decoder(model_.get()) || llama_model_has_encoder(model_.get()) ||
        llama_model_is_diffusion(model_.get())) {
        throw ModelLoadError(
            options.path + " (" + description() +
            ") does not predict next tokens from left to right; decisions need a causal language model");
    }
    try {
        scan_vocabulary();
        prove_labels();
    } catch (const std::exception & error) {
        throw ModelLoadError(options.path + ": its vocabulary cannot be used: " + error.what());
    }
}

void Model::scan_vocabulary() {
    std::set<size_t> lengths;
    for (Token token = 0; token < vocabulary_size(); ++token) {
        const std::string text = detokenize({&token, 1});
        longest_token_bytes_ = std::max(longest_token_bytes_, text.size());
        const bool user_defined = llama_vocab_get_attr(vocabulary_, token) & LLAMA_TOKEN_ATTR_USER_DEFINED;
        if (user_defined && !only_white_space(text)) {
            lengths.insert(text.size());
            markup_.insert(text);
        }
    }
    markup_lengths_.assign(lengths.begin(), lengths.end());
}

void Model::prove_labels() {
    for (const std::string & name : label_names()) {
        // After a newline no tokenizer puts a space before the letters, which would be another token than the label's.
        const std::vector<Token> tokens = tokenize("\n" + name, false);
        if (!tokens.empty() && detokenize({&tokens.back(), 1}) == name) {
            labels_.push_back(tokens.back());
        }
        if (labels_.size() == most_labels) {
            break;
        }
    }
}

std::vector<Token> Model::tokenize(std::string_view text, bool parse_special) const {
    std::vector<Token> tokens;
    size_t start = 0;
    if (!parse_special) {
        for (const size_t at : markup_breaks(text)) {
            tokenize_segment(text.substr(start, at - start), false, tokens);
            start = at;
        }
    }
    tokenize_segment(text.substr(start), parse_special, tokens);
    return tokens;
}

// llama.cpp turns the text of user-defined tokens into those tokens even when it is told not to parse special text.
// Cut after the first character of each occurrence, no segment holds one.
std::vector<size_t> Model::markup_breaks(std::string_view text) const {
    std::vector<size_t> breaks;
    if (markup_.empty()) {
        return breaks;
    }
    std::array<bool, 256> opens{};
    for (const std::string & markup : markup_) {
        opens[static_cast<unsigned char>(markup.front())] = true;
    }
    for (size_t i = 0; i < text.size(); ++i) {
        if (!opens[static_cast<unsigned char>(text[i])]) {
            continue;
        }
        const bool found = std::ranges::any_of(markup_lengths_, [&](size_t n) {
            return i + n <= text.size() && markup_.contains(std::string(text.substr(i, n)));
        });
        if (found) {
            size_t next = i + 1;
            while (next < text.size() && !starts_character(text[next])) {
                ++next;
            }
            breaks.push_back(next);
        }
    }
    return breaks;
}

void Model::tokenize_segment(std::string_view text, bool parse_special, std::vector<Token> & out) const {
    if (text.empty()) {
        return;
    }
    if (text.size() > INT_MAX) {
        throw InvalidRequest("a text of more than 2 GiB cannot be tokenized");
    }
    const auto run = [&](Token * to, size_t room) {
        try {
            return llama_tokenize(vocabulary_, text.data(), static_cast<int32_t>(text.size()), to,
                                  static_cast<int32_t>(room), false, parse_special);
        } catch (const std::exception & error) {  // a vocabulary without a token for some byte
            throw BackendError(std::string("llama.cpp cannot tokenize a text: ") + error.what());
        }
    };
    const size_t used = out.size();
    const size_t guess = text.size() + 8;  // one token a byte, and a tokenizer's own space
    out.resize(used + guess);
    int32_t n = run(out.data() + used, guess);
    if (n < 0 && n != INT32_MIN) {
        out.resize(used - n);
        n = run(out.data() + used, -n);
    }
    if (n < 0) {
        throw BackendError("llama.cpp cannot tokenize a text of " + std::to_string(text.size()) + " bytes");
    }
    out.resize(used + n);
}

std::string Model::detokenize(std::span<const Token> tokens) const {
    std::string text;
    char piece[512];
    for (const Token token : tokens) {
        const int32_t n = llama_token_to_piece(vocabulary_, token, piece, sizeof piece, 0, true);
        if (n >= 0) {
            text.append(piece, n);
        } else {
            std::string longer(-n, '\0');
            llama_token_to_piece(vocabulary_, token, longer.data(), -n, 0, true);
            text += longer;
        }
    }
    return text;
}

std::map<std::string, std::string> Model::metadata() const {
    const auto read = [&](auto getter, int32_t i) {
        std::string text(getter(model_.get(), i, nullptr, 0), '\0');
        getter(model_.get(), i, text.data(), text.size() + 1);
        return text;
    };
    std::map<std::string, std::string> result;
    for (int32_t i = 0; i < llama_model_meta_count(model_.get()); ++i) {
        result[read(llama_model_meta_key_by_index, i)] = read(llama_model_meta_val_str_by_index, i);
    }
    return result;
}

std::string Model::chat_template() const {
    const char * text = llama_model_chat_template(model_.get(), nullptr);
    return text ? text : "";
}

ggml_type Model::cache_type() const {
    return llama_model_ftype(model_.get()) == LLAMA_FTYPE_ALL_F32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
}

// A number that the architecture is described by in the file's metadata.
size_t Model::number(const char * key, int otherwise) const {
    const auto read = [&](const std::string & name) {
        char text[64] = "";
        llama_model_meta_val_str(model_.get(), name.c_str(), text, sizeof text);
        return std::string(text);
    };
    const int value = std::atoi(read(read("general.architecture") + "." + key).c_str());
    return size_t(value > 0 ? value : otherwise);
}

size_t Model::attention_layers() const {
    return llama_model_n_layer(model_.get()) / number("full_attention_interval", 1);
}

size_t Model::cell_bytes() const {
    const int heads = llama_model_n_head(model_.get());
    const int length = heads > 0 ? llama_model_n_embd(model_.get()) / heads : 0;
    const size_t values = number("attention.head_count_kv", heads) *
                          std::max(number("attention.key_length", length), number("attention.value_length", length));
    return attention_layers() * 2 * values * ggml_type_size(cache_type());
}

size_t Model::recurrent_bytes() const {
    const size_t layers = llama_model_n_layer(model_.get()) - attention_layers();
    return layers * number("ssm.inner_size", 0) * number("ssm.state_size", 0) * sizeof(float);
}

std::string Model::description() const {
    char text[256];
    llama_model_desc(model_.get(), text, sizeof text);
    return text;
}

std::optional<Token> Model::leading_token() const {
    const Token bos = llama_vocab_bos(vocabulary_);
    if (llama_vocab_get_add_bos(vocabulary_) && bos != LLAMA_TOKEN_NULL) {
        return bos;
    }
    return std::nullopt;
}

void quantize(const std::string & source, const std::string & target, const std::string & type) {
    static const std::map<std::string, llama_ftype> types = {
        {"F32", LLAMA_FTYPE_ALL_F32},          {"F16", LLAMA_FTYPE_MOSTLY_F16},
        {"BF16", LLAMA_FTYPE_MOSTLY_BF16},     {"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},
        {"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},     {"Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},
        {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},     {"Q3_K_M", LLAMA_FTYPE_MOSTLY_Q3_K_M},
        {"Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M}, {"Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M},
        {"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K},
    };
    const auto known = types.find(type);
    if (known == types.end()) {
        std::string names;
        for (const auto & [name, _] : types) {
            names += (names.empty() ? "" : ", ") + name;
        }
        throw InvalidRequest("unknown quantization '" + type + "'; use one of: " + names);
    }
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = known->second;
    const LogCapture log;
    if (llama_model_quantize(source.c_str(), target.c_str(), &params) != 0) {
        throw BackendError("llama.cpp cannot quantize " + source + ": " + log.errors());
    }
}

}  // namespace decider
