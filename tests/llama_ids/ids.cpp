// Print llama.cpp's ids of texts, for `python -m tests.llama_ids`.
//
//   ids VOCABULARY.gguf [--content] < TEXTS
//
// The texts are separated by NUL bytes. Each gives a line with a JSON list of ids, without the
// tokens that begin and end a text. With --content no control token is recognized.
//
// Build, in a checkout of llama.cpp whose library was built with -DBUILD_SHARED_LIBS=ON in build/:
//   g++ -O1 -std=c++17 -Iinclude -Iggml/include .../ids.cpp -o ids \
//       -Lbuild/bin -lllama -lggml -lggml-base -Wl,-rpath,$PWD/build/bin

#include "llama.h"

#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

static void print_ids(const llama_vocab * vocab, const std::string & text, bool parse_special) {
    // No text has more tokens than bytes, but for a space in front.
    std::vector<llama_token> ids(text.size() + 16);
    const int count = llama_tokenize(vocab, text.data(), (int) text.size(), ids.data(), (int) ids.size(),
                                     /*add_special=*/false, parse_special);
    std::printf("[");
    for (int i = 0; i < count; ++i) {
        std::printf(i ? ", %d" : "%d", ids[i]);
    }
    std::printf("]\n");
}

int main(int argc, char ** argv) {
    if (argc < 2) {
        return 2;
    }
    const bool parse_special = argc < 3 || std::strcmp(argv[2], "--content") != 0;
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model * model = llama_model_load_from_file(argv[1], params);
    if (model == nullptr) {
        std::fprintf(stderr, "cannot load %s\n", argv[1]);
        return 1;
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
    size_t start = 0;
    while (true) {
        const size_t end = input.find('\0', start);
        print_ids(vocab, input.substr(start, end - start), parse_special);
        if (end == std::string::npos) {
            break;
        }
        start = end + 1;
    }
    llama_model_free(model);
    return 0;
}
