// Serves a package that trustgp.compile has made, without Python.
//
//     serve arm.pt2 [repeats] < rows.txt
//
// Rows are numbers with white space between them. Prints one line for each answer: its name, its type, its numbers,
// row after row. With repeats it also asks row by row, so many times each, and prints median and 99th percentile.
// A package holds machine code, which runs when it is loaded: open only files that you trust. A damaged one is
// refused before that, by its checksum: libtorch does not look.
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "sha256.h"

static std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

static at::Tensor read_rows(std::istream& stream, int64_t width, at::ScalarType type) {
  static std::vector<double> values;  // the tensor below is a copy
  for (std::string word; stream >> word;) values.push_back(std::stod(word));  // "nan" and "inf" too
  if (values.empty() || values.size() % width)
    throw std::runtime_error(std::to_string(values.size()) + " numbers do not make rows of " + std::to_string(width));
  const int64_t rows = static_cast<int64_t>(values.size()) / width;
  return at::from_blob(values.data(), {rows, width}, at::kDouble).to(type).clone();
}

static void print(const std::string& name, const at::Tensor& answer) {
  std::printf("%s %s", name.c_str(), c10::toString(answer.scalar_type()));
  const at::Tensor wide = answer.to(at::kDouble).contiguous().view(-1);
  for (int64_t i = 0; i < wide.numel(); ++i) std::printf(" %.17g", wide.data_ptr<double>()[i]);
  std::printf("\n");
}

static void measure(torch::inductor::AOTIModelPackageLoader& model, const at::Tensor& rows, int repeats) {
  std::vector<double> micros;
  for (int repeat = 0; repeat < repeats; ++repeat)
    for (int64_t row = 0; row < rows.size(0); ++row) {
      const auto start = std::chrono::steady_clock::now();
      model.run({rows.slice(0, row, row + 1)});
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
      micros.push_back(took.count());
    }
  std::sort(micros.begin(), micros.end());
  std::fprintf(stderr, "one row: median %.0f us, p99 %.0f us of %zu calls\n", micros[micros.size() / 2],
               micros[micros.size() * 99 / 100], micros.size());
}

int main(int count, char** arguments) try {
  if (count < 2) throw std::runtime_error("usage: serve PACKAGE.pt2 [repeats] < rows.txt");
  require_whole(arguments[1]);
  const c10::InferenceMode guard;
  torch::inductor::AOTIModelPackageLoader model(arguments[1], "model", /*run_single_threaded=*/true);
  const auto metadata = model.get_metadata();
  if (!metadata.count("trustgp.answers")) throw std::runtime_error("this package is not one of trustgp");
  const bool is_double = metadata.at("trustgp.input_types") == "float64";
  const int64_t width = std::stoll(metadata.at("trustgp.input_sizes"));
  const at::Tensor rows = read_rows(std::cin, width, is_double ? at::kDouble : at::kFloat);
  const std::vector<std::string> names = split(metadata.at("trustgp.answers"));
  const std::vector<at::Tensor> answers = model.run({rows});
  for (size_t i = 0; i < names.size(); ++i) print(names[i], answers.at(i));
  if (count > 2) measure(model, rows, std::stoi(arguments[2]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
