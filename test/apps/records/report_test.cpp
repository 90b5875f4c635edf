// Pages and tables about runs.

#include "apps/records/report.hpp"

#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/records/chart.hpp"
#include "apps/records/timeline_picture.hpp"
#include "base/error.hpp"

namespace gossamer::apps {
namespace {

/// A run of 50 steps with two ranks.
std::string write_run(const Folder& folder, const std::string& name, int num_steps = 50) {
  const std::string path = folder.file(name);
  fs::create_directories(path);
  write_bytes(path + "/config.yaml",
              concat("run:\n  seed: 1\n  output_dir: ", name,
                     "\nalgorithm:\n  name: gossip\ntopology:\n  name: ring\noptimizer:\n  name: "
                     "sgd\n  lr: 0.5\n  betas: [0.9, 0.99]\n"));
  write_bytes(path + "/status.json",
              R"({"state": "done", "step": 50, "total_steps": 50, "faults": ["a <fault>"]})");
  write_bytes(path + "/environment.json",
              R"({"started": "2026-01-01T00:00:00Z", "world_size": 2, "node_size": 2,
                  "versions": {"LibTorch": "2.11.0"},
                  "hosts": [{"name": "h", "processor": "Some & processor", "cores": 2,
                             "memory_gb": 8.0, "ranks": [0, 1]}]})");
  std::string lines;
  for (int step = 1; step <= num_steps; ++step) {
    lines += concat(R"({"kind":"step","step":)", step, R"(,"loss":)", 100.0 / step,
                    R"(,"lr":0.5,"elapsed_s":)", step,
                    R"(,"rank_loss":[1.0,2.0],"rank_wait_ms":[0.5,null]})", "\n");
  }
  lines += R"({"kind":"eval","step":50,"loss_mean_model":0.25,"accuracy_mean_model":0.875})";
  lines += "\n";
  lines += R"({"kind":"final","step":50,"loss_mean_model":0.25,"accuracy_mean_model":0.875,)"
           R"("consensus_distance":0.5,"bytes_sent_per_step":2048.0,"samples_per_s":1234.5,)"
           R"("rank_step_ms":[10.0,12.0],"rank_forward_ms":[4.0,4.0],"rank_backward_ms":[3.0,3.0],)"
           R"("rank_wait_ms":[1.0,3.0],"rank_update_ms":[1.0,1.0]})";
  lines += "\n{\"kind\":\"step\",\"st";  // cut off
  write_bytes(path + "/metrics.jsonl", lines);
  return path;
}

TEST(ReadRun, KeepsSomeStepsOfALongRunAndTheLast) {
  const Folder folder;
  const RunRecord whole = read_run(write_run(folder, "a"));
  EXPECT_EQ(whole.name, "a");
  EXPECT_EQ(whole.steps.size(), 50U);
  EXPECT_EQ(whole.evaluations.size(), 1U);
  EXPECT_EQ(whole.value("optimizer.lr"), "0.5");
  EXPECT_EQ(whole.value("optimizer.betas[1]"), "0.99");
  EXPECT_EQ(whole.value("no.such"), "");
  const RunRecord thinned = read_run(folder.file("a"), 10);
  EXPECT_LE(thinned.steps.size(), 11U);
  EXPECT_GE(thinned.steps.size(), 8U);
  EXPECT_EQ(thinned.steps.front()["step"], 1);
  EXPECT_EQ(read_run(folder.file("a") + "/").name, "a");
  EXPECT_TRUE(contains(what_of<CheckpointError>([&] { read_run(folder.file("b")); }),
                       "is not the folder of a run"));
}

TEST(ReadRun, LeavesARecordItsOwnMembers) {
  const Folder folder;
  const std::string path = write_run(folder, "a", 0);
  write_bytes(path + "/metrics.jsonl", R"({"kind":"members","step":3,"members":[0,2]})"
                                       "\n"
                                       R"({"kind":"step","step":4,"members":[2]})"
                                       "\n"
                                       R"({"kind":"step","step":5})"
                                       "\n");
  const RunRecord run = read_run(path);
  EXPECT_EQ(run.steps[0]["members"], nlohmann::ordered_json({2}));
  EXPECT_EQ(run.steps[1]["members"], nlohmann::ordered_json({0, 2}));
}

TEST(HtmlReport, HasTheLastEvaluationWhereTheEndHasNone) {
  const Folder folder;
  const std::string path = write_run(folder, "a", 0);
  write_bytes(path + "/metrics.jsonl", R"({"kind":"eval","step":50,"loss_mean_model":0.375})"
                                       "\n"
                                       R"({"kind":"final","step":50,"samples_per_s":1234.5})"
                                       "\n");
  EXPECT_TRUE(contains(html_report({read_run(path)}), ">0.375<"));
}

TEST(HtmlReport, StandsAlone) {
  const Folder folder;
  const std::string html = html_report({read_run(write_run(folder, "first"))});
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  // No scripts, no other files: images are part of the page.
  for (const std::string outside : {"<script", "src=\"http", "href=", "url(", "@import"}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
  for (const std::string part :
       {"Training loss over steps", "Time of a step on every rank: first", "87.5 %", "gossip",
        "optimizer.lr", "Some &amp; processor", "2.11.0", "a &lt;fault&gt;", "2026-01-01"}) {
    EXPECT_TRUE(contains(html, part)) << part;
  }
  EXPECT_TRUE(contains(html, "data:image/svg+xml;base64,PHN2Z"));
}

TEST(HtmlReport, ComparesRuns) {
  const Folder folder;
  const std::string one = write_run(folder, "one");
  const std::string two = write_run(folder, "two");
  std::string config = read_file(two + "/config.yaml");
  config.replace(config.find("lr: 0.5"), 7, "lr: 0.7");
  write_bytes(two + "/config.yaml", config);
  const std::string html = html_report({read_run(one), read_run(two)});
  const std::string differences = html.substr(html.find("Differences of the configurations"), 600);
  EXPECT_TRUE(contains(differences, "<td>0.5</td><td>0.7</td>")) << differences;
  EXPECT_TRUE(contains(html, series_color(1)));
}

TEST(HtmlReport, TellsRunsOfOneNameApart) {
  const Folder folder;
  const std::string one = write_run(folder, "x/run");
  const std::string two = write_run(folder, "y/run");
  const std::string other = write_run(folder, "other");
  const std::vector<RunRecord> runs = read_runs({one, two, other});
  EXPECT_EQ(runs[0].name, one);
  EXPECT_EQ(runs[1].name, two);
  EXPECT_EQ(runs[2].name, "other");
  EXPECT_EQ(read_runs({one})[0].name, "run");
}

TEST(ReadRun, SurvivesWhatIsNestedDeeply) {
  const Folder folder;
  const std::string path = write_run(folder, "deep", 0);
  const std::string deep = concat(R"({"state": )", std::string(1'000'000, '['),
                                  std::string(1'000'000, ']'), R"(, "step": 7})");
  write_bytes(path + "/status.json", deep);
  const RunRecord run = read_run(path);
  EXPECT_LT(text_in(run.status, "state").size(), 100U);
  EXPECT_EQ(text_in(run.status, "step"), "7");
}

TEST(ReadRun, RefusesNamesThatAreTooLong) {
  EXPECT_TRUE(contains(what_of<CheckpointError>([] { read_run(std::string(300, 'x')); }),
                       "cannot be read: File name too long"));
}

TEST(ReadRun, KeepsTheConsensusDistancesOfALongRun) {
  const Folder folder;
  const std::string path = write_run(folder, "a", 0);
  std::string lines;
  for (int step = 1; step <= 400; ++step) {
    lines += concat(R"({"kind":"step","step":)", step,
                    step % 10 == 0 ? R"(,"consensus_distance":0.5)" : "", "}\n");
  }
  write_bytes(path + "/metrics.jsonl", lines);
  const RunRecord run = read_run(path, 100);
  EXPECT_LT(run.steps.size(), 180U);
  EXPECT_EQ(
      std::ranges::count_if(
          run.steps, [](const auto& record) { return record.contains("consensus_distance"); }),
      40);
}

TEST(HtmlReport, SurvivesFilesOfOtherTypes) {
  const Folder folder;
  const std::string path = write_run(folder, "odd");
  for (const std::string line :
       {R"({"kind":5})", R"({"kind":"step","step":"x","rank_loss":"y"})",
        R"({"kind":"step","step":1,"loss":[1],"rank_loss":[1,2],"rank_wait_ms":[1]})",
        R"({"kind":"final","rank_step_ms":[null,"a"],"rank_forward_ms":[]})",
        R"({"kind":"eval","loss_mean_model":null})", R"({"kind":"members","members":"x"})",
        R"({"kind":"members","members":[-1,"a",1e300],"lost":{},"step":[1]})", "[1, 2]", "7",
        "{"}) {
    write_bytes(path + "/metrics.jsonl", line + "\n");
    for (const std::string other :
         {R"({"state": 1, "faults": 3, "message": []})",
          R"({"world_size": "4", "versions": [1], "hosts": {"a": 1}, "started": null})", "[]"}) {
      write_bytes(path + "/status.json", other);
      write_bytes(path + "/environment.json", other);
      EXPECT_FALSE(html_report({read_run(path)}).empty());
      EXPECT_FALSE(csv_report({read_run(path)}).empty());
    }
  }
}

/// A run of three ranks, of which the second dies after step 2, and two of whom join after step 3.
std::string write_changing_run(const Folder& folder) {
  const std::string path = write_run(folder, "lossy", 0);
  std::string lines;
  const auto add_step = [&lines](int step, const std::string& losses) {
    lines += concat(R"({"kind":"step","step":)", step, R"(,"loss":1.0,"elapsed_s":)", step,
                    R"(,"rank_loss":)", losses, R"(,"rank_wait_ms":)", losses, "}\n");
  };
  add_step(1, "[1.0,2.0,3.0]");
  add_step(2, "[1.0,2.0,3.0]");
  lines += R"({"kind":"members","step":2,"epoch":1,"members":[0,2],"goodput":0.75,"elapsed_s":2.5,)"
           R"("lost":[1],"joined":[],"recovery_s":0.125})"
           "\n";
  add_step(3, "[1.0,3.0]");
  lines += R"({"kind":"members","step":3,"epoch":2,"members":[0,2,3,4],"goodput":0.5,)"
           R"("elapsed_s":3.5,"lost":[],"joined":[3,4],"recovery_s":0.25})"
           "\n";
  add_step(4, "[1.0,3.0,4.0,5.0]");
  write_bytes(path + "/metrics.jsonl", lines);
  write_bytes(path + "/status.json",
              R"({"state": "done", "step": 4, "members": [0, 2, 3, 4], "goodput": 0.875})");
  return path;
}

TEST(HtmlReport, ShowsHowTheMembersHaveChanged) {
  const Folder folder;
  const std::string html = html_report({read_run(write_changing_run(folder))});
  for (const std::string part :
       {"<h2>Members</h2>",
        ">0, 2</td><td class=\"number\">1</td><td class=\"number\">–</td><td "
        "class=\"number\">0.125<",
        ">0, 2, 3, 4</td><td class=\"number\">–</td><td class=\"number\">3, 4<",
        "Goodput at the end: 87.5 %", ">2, now 4<", "<title>after step 2: lost 1</title>",
        "<title>after step 3: joined 3, 4</title>"}) {
    EXPECT_TRUE(contains(html, part)) << part;
  }
  const std::string plain = html_report({read_run(write_run(folder, "plain"))});
  for (const std::string part : {"Members", "class=\"mark\"", "member"}) {
    EXPECT_FALSE(contains(plain, part)) << part;
  }
}

TEST(HtmlReport, KeepsTheCurveOfAMemberWhoseRankChanges) {
  const Folder folder;
  const std::string html = html_report({read_run(write_changing_run(folder))});
  const std::size_t begin = html.find("Training loss of every rank: lossy");
  ASSERT_NE(begin, html.npos);
  const std::string chart = html.substr(begin, html.find("</figure>", begin) - begin);
  // Its loss is 3, as rank 2 and then as rank 1.
  for (int step = 1; step <= 4; ++step) {
    EXPECT_TRUE(contains(chart, concat("member 2: 3 at ", step, "<"))) << step;
  }
  EXPECT_FALSE(contains(chart, "member 1: 2 at 3<"));
  EXPECT_TRUE(contains(chart, "member 4: 5 at 4<"));
}

TEST(HtmlReport, IsThereForARunWithoutRecords) {
  const Folder folder;
  fs::create_directories(folder.file("new"));
  write_bytes(folder.file("new/config.yaml"), "run:\n  seed: 1\n");
  EXPECT_TRUE(contains(html_report({read_run(folder.file("new"))}), "<h1>new</h1>"));
}

/// The cells of the first table behind those of its headings.
std::string summary_of(const std::string& html) {
  const std::size_t begin = html.find("<table>");
  return html.substr(begin, html.find("</table>", begin) - begin);
}

TEST(HtmlReport, OfARunOfAStudyHasNoEmptyParts) {
  const Folder folder;
  const std::string path = write_run(folder, "study");
  fs::remove(path + "/environment.json");
  fs::remove(path + "/status.json");
  const std::string html = html_report({read_run(path)});
  EXPECT_FALSE(contains(html, "Versions and machines"));
  EXPECT_FALSE(contains(summary_of(html), "<th>state</th>"));
  // The losses of the ranks tell how many there are.
  EXPECT_TRUE(contains(summary_of(html), "<td class=\"number\">2</td><td class=\"number\">50</td>"))
      << summary_of(html);
  EXPECT_TRUE(contains(html, "<h2>Topology</h2>"));
}

TEST(HtmlReport, OfARunThatWasStoppedHasTheValuesOfItsCurves) {
  const Folder folder;
  const std::string path = write_run(folder, "stopped", 0);
  write_bytes(
      path + "/metrics.jsonl",
      R"({"kind":"step","step":10,"loss":1.5,"consensus_distance":0.75,"samples_per_s":320})"
      "\n"
      R"({"kind":"step","step":20,"loss":1.25,"samples_per_s":340})"
      "\n");
  const std::string table = summary_of(html_report({read_run(path)}));
  for (const std::string value : {">1.25 (training)<", ">0.75<", ">340<"}) {
    EXPECT_TRUE(contains(table, value)) << table;
  }
}

TEST(HtmlReport, MarksARunThatHasDiverged) {
  const Folder folder;
  const std::string path = write_run(folder, "wild");
  write_bytes(
      path + "/status.json",
      R"({"state": "done", "step": 50, "diverged_at": 40, "faults": ["the run has diverged"]})");
  const std::string html = html_report({read_run(path)});
  EXPECT_TRUE(contains(html, "<td>done, diverged after step 40</td>"));
  EXPECT_TRUE(contains(html, "<p class=\"fault\">wild: the run has diverged</p>"));
}

TEST(HtmlReport, HasAccuracyInPerCentOnItsAxis) {
  const Folder folder;
  const std::string html = html_report({read_run(write_run(folder, "a"))});
  EXPECT_TRUE(contains(html, "Accuracy of the mean model, %"));
  EXPECT_TRUE(contains(html, "a: 87.5 at 50<"));
}

TEST(CsvReport, HasOneLineForEveryRecord) {
  const Folder folder;
  const std::string csv = csv_report({read_run(write_run(folder, "r,1", 3))});
  EXPECT_TRUE(
      csv.starts_with("run,kind,step,loss,lr,elapsed_s,loss_mean_model,"
                      "accuracy_mean_model,"))
      << csv;
  EXPECT_TRUE(contains(csv, "\n\"r,1\",step,2,50,0.5,2,,,")) << csv;
  EXPECT_TRUE(contains(csv, "\n\"r,1\",eval,50,,,,0.25,0.875,")) << csv;
  EXPECT_EQ(std::ranges::count(csv, '\n'), 1 + 3 + 1 + 1);
}

TEST(LineChart, LeavesOutWhatCannotBeDrawn) {
  LineChart chart{.title = "a < b",
                  .x_label = "x",
                  .series = {{.name = "s", .points = {{1.0, 0.0}, {2.0, NAN}, {3.0, 10.0}}}},
                  .logarithmic = true};
  EXPECT_EQ(std::ranges::count(line_chart(chart), 'M'), 1);
  EXPECT_TRUE(contains(line_chart(chart), "a &lt; b"));
  chart.series[0].points = {{1.0, -1.0}};
  EXPECT_EQ(line_chart(chart), "");
  EXPECT_EQ(short_number(12345.6), "12346");
  EXPECT_EQ(short_number(0.000123456), "0.0001235");
}

TEST(LineChart, HasADifferentLabelForEachTick) {
  const LineChart chart{
      .title = "", .x_label = "x", .series = {{.name = "s", .points = {{0, 80.83}, {9, 80.85}}}}};
  const std::string svg = line_chart(chart);
  for (const std::string label : {">80.830<", ">80.832<", ">80.848<", ">80.850<"}) {
    EXPECT_TRUE(contains(svg, label)) << label;
  }
}

TEST(LineChart, ShowsInTheLegendHowALineIsDrawn) {
  const LineChart chart{.title = "",
                        .x_label = "x",
                        .series = {{.name = "a", .points = {{0, 1}}},
                                   {.name = "b", .points = {{0, 2}}, .dashed = true}}};
  const std::string svg = line_chart(chart);
  EXPECT_TRUE(contains(svg, "border-top:3px solid #4477aa\"></i>a<"));
  EXPECT_TRUE(contains(svg, "border-top:3px dashed #4477aa\"></i>b<"));
}

TEST(LineChart, ShowsTheWholeOfALongTitle) {
  const std::string title = "Waiting for peers, milliseconds per step: " + std::string(80, 'x');
  const LineChart chart{
      .title = title, .x_label = "x", .series = {{.name = "s", .points = {{0, 1}}}}};
  // Text of HTML wraps; text of SVG does not.
  EXPECT_TRUE(contains(line_chart(chart), concat("<div class=\"title\">", title, "</div>")));
}

/// A trace of two ranks with steps 1 to 5 of 10 ms each, and one message of each rank and step.
std::string made_up_trace() {
  std::string events;
  const auto add = [&](int rank, int thread, const std::string& kind, int step, int begin_us) {
    events += concat(events.empty() ? "" : ",", R"({"name":")", kind, R"(","cat":")", kind,
                     R"(","ph":"X","ts":)", 10'000 * step + begin_us, R"(,"dur":)",
                     kind == "step" ? 10'000 : 2'000, R"(,"pid":)", rank, R"(,"tid":)", thread,
                     R"(,"args":{"step":)", step, R"(,"bucket":7,"peers":[)", 1 - rank,
                     R"(],"bytes":4000000}})");
  };
  for (const int rank : {0, 1}) {
    for (int step = 1; step <= 5; ++step) {
      add(rank, 0, "step", step, 0);
      add(rank, 0, "forward", step, 0);
      add(rank, 0, "wait", step, 5'000);
      add(rank, 0, "of its own", step, 8'000);
      add(rank, 1, "queued", step, 6'000);
      add(rank, 1, "exchange", step, 7'000);
    }
  }
  return concat(R"({"traceEvents":[{"name":"process_name","ph":"M","pid":0,"args":{}},)", events,
                "]}");
}

std::ptrdiff_t count_of(const std::string& text, const std::string& part) {
  std::ptrdiff_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(TimelinePicture, ShowsThreeStepsOfAllRanks) {
  const std::string svg = timeline_svg(nlohmann::json::parse(made_up_trace()), "a < b");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  for (const std::string part :
       {"a &lt; b", ">rank 0<", ">rank 1<", ">step 2<", ">step 4<",
        "exchange, bucket 7, with [1], 4.0 MB: 2 ms", ">forward<",
        ">waiting for peers (lost time)<", ">exchange<", ">other<", " ms<"}) {
    EXPECT_TRUE(contains(svg, part)) << part;
  }
  // The first step lacks the messages of the step before.
  for (const std::string part : {">step 1<", ">step 5<", "queued", ">all-reduce<"}) {
    EXPECT_FALSE(contains(svg, part)) << part;
  }
  // Three steps of two ranks with four bars each, the background, and four kinds in the legend.
  EXPECT_EQ(count_of(svg, "<rect"), 3 * 2 * 4 + 1 + 4);
}

TEST(TimelinePicture, IsEmptyForOtherFiles) {
  const Folder folder;
  for (const std::string text :
       {"", "{", "[]", "{}", R"({"traceEvents": 3})", R"({"traceEvents": []})",
        R"({"traceEvents": [1]})", R"({"traceEvents": [{"ph": "X", "ts": "a"}]})",
        R"({"traceEvents": [{"ph": "X", "cat": "step"}]})",
        R"({"traceEvents": [{"ph": "X", "cat": "step", "ts": 5, "dur": 0, "args": {"step": 1}}]})",
        R"({"traceEvents": [{"ph": "X", "cat": "forward", "ts": 1, "dur": 1}]})"}) {
    write_bytes(folder.file("trace.json"), text);
    EXPECT_EQ(timeline_svg(read_trace(folder.file("trace.json")), "t"), "") << text;
    EXPECT_EQ(timeline_figure(read_trace(folder.file("trace.json")), "t"), "") << text;
  }
  EXPECT_TRUE(read_trace(folder.file("none")).is_null());
}

/// One rank with two steps of these numbers, and bounds in microseconds.
std::string two_steps(const std::string& begin, const std::string& length,
                      const std::string& first = "0", const std::string& second = "1") {
  std::string events;
  for (const std::string& step : {first, second}) {
    events += concat(events.empty() ? "" : ",", R"({"ph":"X","cat":"step","pid":0,"ts":)", begin,
                     R"(,"dur":)", length, R"(,"args":{"step":)", step, "}}");
  }
  return concat(R"({"traceEvents":[)", events, "]}");
}

TEST(TimelinePicture, EndsForAnyNumbers) {
  const std::string most = "9223372036854775807";
  for (const std::string& trace :
       {two_steps("0", "1e4", "0", most), two_steps("0", "1e4", "1e300", "-1e300"),
        two_steps("0", "1e-320"), two_steps("1.7e308", "1.7e308"), two_steps("0", "1.7e308"),
        two_steps("-1e300", "1e300"), two_steps("0", "1e4", "[[]]", "{}")}) {
    static_cast<void>(timeline_svg(nlohmann::json::parse(trace), "t"));
  }
  EXPECT_TRUE(contains(timeline_svg(nlohmann::json::parse(two_steps("0", "1e4", "5", most)), "t"),
                       concat(">step ", most, "<")));
}

TEST(HtmlReport, SurvivesTimelinesOfOtherTypes) {
  const Folder folder;
  const std::string path = write_run(folder, "odd");
  write_bytes(path + "/config.yaml",
              read_file(path + "/config.yaml") + "log: {timeline: t.json}\n");
  for (const std::string other : {"5", "[]", R"({"about": 5})", R"({"about": "odd"})"}) {
    write_bytes(path + "/t.json",
                concat(R"({"traceEvents": [{"pid": "x"}], "otherData": )", other, "}"));
    EXPECT_FALSE(html_report({read_run(path)}).empty());
  }
}

TEST(HtmlReport, TellsNothingOfOtherFiles) {
  const Folder folder;
  const std::string path = write_run(folder, "curious");
  write_bytes(folder.file("secret"), "root:the-secret:19000:0:99999:7:::\n");
  std::string config = read_file(path + "/config.yaml");
  config.replace(config.find("name: ring"), 10,
                 concat("name: from-file\n  path: ", folder.file("secret")));
  write_bytes(path + "/config.yaml", config);
  const std::string html = html_report({read_run(path)});
  EXPECT_FALSE(contains(html, "the-secret"));
  EXPECT_TRUE(contains(html, "There is no drawing"));
}

TEST(HtmlReport, ShowsTheTimelineOfARun) {
  const Folder folder;
  const std::string path = write_run(folder, "first");
  const std::string title = "Timeline of a few steps: first";
  nlohmann::json trace = nlohmann::json::parse(made_up_trace());
  trace["otherData"]["about"] = "first";
  write_bytes(folder.file("trace.json"), trace.dump());
  // A trace that this run has not made.
  EXPECT_FALSE(contains(html_report({read_run(path)}), title));
  write_bytes(path + "/config.yaml",
              concat(read_file(path + "/config.yaml"), "log:\n  timeline: \"",
                     folder.file("trace.json"), "\"\n"));
  EXPECT_TRUE(contains(html_report({read_run(path)}), title));
  // Another run has written a file of this name.
  trace["otherData"]["about"] = "second";
  write_bytes(folder.file("trace.json"), trace.dump());
  EXPECT_FALSE(contains(html_report({read_run(path)}), title));
  trace["otherData"]["about"] = "first";
  write_bytes(folder.file("trace.json"), trace.dump());
  fs::rename(folder.file("trace.json"), path + "/trace.json");
  EXPECT_TRUE(contains(html_report({read_run(path)}), title));
  fs::remove(path + "/trace.json");
  EXPECT_FALSE(contains(html_report({read_run(path)}), title));
}

}  // namespace
}  // namespace gossamer::apps
