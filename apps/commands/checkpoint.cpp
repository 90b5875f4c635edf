// gossamer checkpoint verify | show | diff | hash | export

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/commands/commands.hpp"
#include "apps/models/torchscript.hpp"
#include "apps/records/run_folder.hpp"
#include "apps/train/checkpointer.hpp"
#include "apps/train/model_file.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/compare.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer::apps {
namespace {

constexpr int kMostDifferences = 20;

struct Found {
  std::string folder;
  /// True: the search has verified it.
  bool verified = false;
};

/// `path` itself if it is a checkpoint, otherwise the newest checkpoint of the run in this folder.
Found find_checkpoint(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::exists(concat(path, "/", kManifestName), failure)) return {path};
  const std::string newest =
      newest_checkpoint(checkpoint_folder(path), [](const std::string& error) {
        std::cerr << visible(error) << "; this checkpoint is left out\n";
      });
  if (!newest.empty()) return {newest, true};
  throw CheckpointError(concat(path, " is neither a checkpoint nor the folder of a run that has ",
                               "one; a checkpoint holds ", kManifestName));
}

/// Reading all files once is enough.
Manifest verified_manifest(const Found& found) {
  return found.verified ? read_manifest(found.folder) : verify_checkpoint(found.folder);
}

std::int64_t total_bytes(const Manifest& manifest) {
  std::int64_t sum = 0;
  for (const auto& [name, file] : manifest.files) sum += file.num_bytes;
  return sum;
}

void verify(const std::string& path) {
  const Found found = find_checkpoint(path);
  const Manifest manifest = verified_manifest(found);
  std::cout << visible(found.folder) << ": " << manifest.files.size() << " files, "
            << total_bytes(manifest) << " bytes, as the manifest says\n";
}

void show(const std::string& path, bool json) {
  const std::string folder = find_checkpoint(path).folder;
  const Manifest manifest = read_manifest(folder);
  const SafetensorsFile file(concat(folder, "/", rank_file_name(0)));
  if (json) {
    Json tensors = Json::array();
    for (const TensorEntry& tensor : file.tensors()) {
      tensors.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
    }
    Json all = {{"path", folder},
                {"step", manifest.step},
                {"world_size", manifest.world_size},
                {"bytes", total_bytes(manifest)},
                {"run", manifest.run},
                {"tensors_of_rank_0", tensors}};
    if (!manifest.members.empty()) all["members"] = manifest.members;
    std::cout << all.dump(2, ' ', /*ensure_ascii=*/true) << "\n";
    return;
  }
  std::cout << visible(folder) << "\n  after step " << manifest.step << ", " << manifest.world_size
            << (manifest.world_size == 1 ? " rank, " : " ranks, ") << total_bytes(manifest)
            << " bytes\n";
  if (!manifest.members.empty()) {
    std::cout << "  members " << join(manifest.members, ", ") << "\n";
  }
  std::cout << "\nconfiguration\n";
  for (const auto& [key, value] : manifest.run) {
    std::cout << "  " << visible_line(key) << ": " << visible_line(value) << "\n";
  }
  std::cout << "\nstate of rank 0\n";
  for (const TensorEntry& tensor : file.tensors()) {
    std::cout << "  " << visible_line(tensor.name) << "  " << tensor.dtype;
    for (const std::int64_t size : tensor.shape) std::cout << " x " << size;
    std::cout << "\n";
  }
}

void hash(const std::string& path) {
  const Found found = find_checkpoint(path);
  std::cout << hash_of_state(found.folder, verified_manifest(found)) << "  "
            << visible(found.folder) << "\n";
}

ExitCode diff(const std::string& first, const std::string& second) {
  const std::string a = find_checkpoint(first).folder;
  const std::string b = find_checkpoint(second).folder;
  const Manifest one = read_manifest(a);
  const Manifest two = read_manifest(b);
  if (one.world_size != two.world_size) {
    std::cout << a << " has " << one.world_size << " ranks, and " << b << " has " << two.world_size
              << "\n";
    return ExitCode::kCheckFailed;
  }
  const std::vector<StateDifference> all = differences_of(a, b, one.world_size);
  if (all.empty()) {
    std::cout << "the state of all ranks is the same\n";
    return ExitCode::kDone;
  }
  std::cout << all.size() << " tensors are not the same\n";
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), kMostDifferences); ++i) {
    std::cout << "  rank " << all[i].rank << ", " << visible_line(all[i].name) << " " << all[i].text
              << "\n";
  }
  if (all.size() > kMostDifferences) std::cout << "  ...\n";
  return ExitCode::kCheckFailed;
}

struct ExportArguments {
  std::string path;
  std::string output;
  /// -1: the mean model.
  int rank = -1;
  /// A TorchScript file that gets the values; empty: none.
  std::string torchscript;
};

/// Writes the module of a TorchScript file with these values.
void write_module(const std::string& torchscript, const std::string& output,
                  std::vector<TensorView> values) {
  // The output may be the file of the module, so the module comes first.
  const std::shared_ptr<Model> model = load_torchscript(torchscript, {});
  {
    const TemporaryFile between(".safetensors");
    write_safetensors(between.path(), std::move(values));
    static_cast<void>(load_model_file(between.path(), *model, /*partial=*/false,
                                      "Take the module with which the run was trained."));
  }
  model->eval();
  save_torchscript(*model, output);
}

void export_model(const ExportArguments& arguments) {
  const Found found = find_checkpoint(arguments.path);
  const std::string& folder = found.folder;
  const Manifest manifest = verified_manifest(found);
  if (!manifest.files.contains(kMeanModelName)) {
    throw CheckpointError(
        concat(folder,
               " has no mean model, because a loop in Python has saved it, allowed: in "
               "Python, inside global_average(), safetensors.torch.save_file(); or to go on "
               "from it with gossamer train --resume"));
  }
  const SafetensorsFile model(concat(folder, "/", kMeanModelName));
  if (arguments.rank >= manifest.world_size) {
    throw ConfigError(
        "command line", "--rank",
        concat(arguments.rank, " is out of range, allowed: 0 to ", manifest.world_size - 1));
  }
  // The rank's values, in the shapes of the mean model.
  const SafetensorsFile source(
      concat(folder, "/",
             arguments.rank < 0 ? std::string(kMeanModelName) : rank_file_name(arguments.rank)));
  std::vector<std::vector<char>> values;
  std::vector<TensorView> views;
  for (const TensorEntry& shaped : model.tensors()) {
    const TensorEntry* tensor = source.find(shaped.name);
    if (tensor == nullptr) {
      throw CheckpointError(concat(source.path(), " has no ", shaped.name));
    }
    values.emplace_back(static_cast<std::size_t>(tensor->num_bytes()));
    source.read(*tensor, values.back().data());
    views.push_back({.name = shaped.name,
                     .dtype = tensor->dtype,
                     .shape = shaped.shape,
                     .data = values.back().data(),
                     .num_bytes = tensor->num_bytes()});
  }
  if (arguments.torchscript.empty()) {
    write_safetensors(arguments.output, std::move(views));
  } else {
    write_module(arguments.torchscript, arguments.output, std::move(views));
  }
  std::cout << arguments.output << ": the "
            << (arguments.rank < 0 ? std::string("mean model")
                                   : concat("model of rank ", arguments.rank))
            << " after step " << manifest.step << "\n";
}

CLI::Option* add_path(CLI::App& command, const char* name, std::string& path) {
  return command
      .add_option(name, path, "A checkpoint, or the folder of a run: its newest checkpoint")
      ->required()
      ->type_name("PATH");
}

CLI::App* add_subcommand(CLI::App& command, const char* name, const char* summary,
                         const char* example) {
  CLI::App* added = command.add_subcommand(name, summary);
  added->footer(concat("Example:\n  gossamer checkpoint ", name, " ", example));
  return added;
}

void add_export(CLI::App& command, int& exit_code) {
  CLI::App* added =
      add_subcommand(command, "export", "Write the mean model, or the model of one rank",
                     "runs/quickstart -o model.safetensors");
  const auto arguments = std::make_shared<ExportArguments>();
  add_path(*added, "path", arguments->path);
  added->add_option("-o,--output", arguments->output, "The file to write")->required();
  added->add_option("--rank", arguments->rank, "The rank; without it the mean model")
      ->check(CLI::NonNegativeNumber);
  added
      ->add_option("--torchscript", arguments->torchscript,
                   "Write a TorchScript module: the module of this file, with the model's values. "
                   "The file holds code; take it only from people you trust")
      ->type_name("FILE.pt");
  added->callback([arguments, &exit_code] {
    export_model(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace

void add_checkpoint_command(CLI::App& program, int& exit_code) {
  CLI::App* command =
      program.add_subcommand("checkpoint", "Verify, show, compare and export checkpoints");
  command->require_subcommand(1);
  command->footer("Example:\n  gossamer checkpoint show runs/quickstart");
  const auto add = [command](const char* name, const char* summary, const char* example) {
    return add_subcommand(*command, name, summary, example);
  };
  const auto done = [&exit_code] { exit_code = static_cast<int>(ExitCode::kDone); };
  const auto path = std::make_shared<std::string>();

  CLI::App* verify_command =
      add("verify", "Compare every file with the manifest's SHA-256; exit code 4 if one differs",
          "runs/quickstart");
  add_path(*verify_command, "path", *path);
  verify_command->callback([path, done] {
    verify(*path);
    done();
  });

  CLI::App* show_command = add("show", "Show step, configuration and tensors", "runs/quickstart");
  const auto json = std::make_shared<bool>(false);
  add_path(*show_command, "path", *path);
  show_command->add_flag("--json", *json, "As JSON");
  show_command->callback([path, json, done] {
    show(*path, *json);
    done();
  });

  CLI::App* hash_command =
      add("hash", "Print a hash of the state of all ranks; equal if runs continue alike",
          "runs/quickstart");
  add_path(*hash_command, "path", *path);
  hash_command->callback([path, done] {
    hash(*path);
    done();
  });

  CLI::App* diff_command = add("diff",
                               "Compare the state of two checkpoints; exit code 1 if they "
                               "differ",
                               "runs/a runs/b");
  const auto second = std::make_shared<std::string>();
  add_path(*diff_command, "first", *path);
  add_path(*diff_command, "second", *second);
  diff_command->callback(
      [path, second, &exit_code] { exit_code = static_cast<int>(diff(*path, *second)); });

  add_export(*command, exit_code);
}

}  // namespace gossamer::apps
