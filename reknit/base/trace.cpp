#include "reknit/base/trace.h"

#include "reknit/base/format.h"

#include <algorithm>

namespace reknit {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') {
      out += '\\';
    }
    out += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  }
  return out + '"';
}

std::string microseconds(double seconds) {
  return format("%.3f", seconds * 1e6);
}

std::string named(int rank, int row, const char* what, const std::string& value) {
  return "{\"ph\":\"M\",\"pid\":" + std::to_string(rank) + ",\"tid\":" + std::to_string(row) +
         ",\"name\":\"" + what + "\",\"args\":" + value + "},\n";
}

std::string details(const TraceSpan& span) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += (text.empty() ? "\"" : ",\"") + std::string(name) + "\":" + value;
  };
  if (span.bytes >= 0) {
    add("bytes", std::to_string(span.bytes));
  }
  if (span.number >= 0) {
    add("number", std::to_string(span.number));
  }
  return "{" + text + "}";
}

}  // namespace

int Trace::row(const std::string& name) {
  const auto [place, is_new] = row_of_.try_emplace(name, static_cast<int>(rows_.size()));
  if (is_new) {
    rows_.push_back({name});
  }
  return place->second;
}

void Trace::add(int row, TraceSpan span) {
  Row& place = rows_.at(row);
  const double end = std::max(place.end, span.begin + std::max(0.0, span.seconds));
  span.begin = std::max(place.end, span.begin);
  if (span.seconds >= 0) {
    span.seconds = end - span.begin;
    place.end = end;
  }
  if (spans_.size() < limit_) {
    spans_.push_back({row, span});
    return;
  }
  spans_[oldest_] = {row, span};
  oldest_ = (oldest_ + 1) % limit_;
  ++dropped_;
}

std::string Trace::events() const {
  std::string text =
      named(rank_, 0, "process_name", "{\"name\":\"rank " + std::to_string(rank_) + "\"}") +
      named(rank_, 0, "process_sort_index", "{\"sort_index\":" + std::to_string(rank_) + "}");
  for (size_t row = 0; row < rows_.size(); ++row) {
    const int number = static_cast<int>(row);
    text += named(rank_, number, "thread_name", "{\"name\":" + quoted(rows_[row].name) + "}");
    text += named(rank_, number, "thread_sort_index",
                  "{\"sort_index\":" + std::to_string(number) + "}");
  }
  for (size_t i = 0; i < spans_.size(); ++i) {
    const Placed& placed = spans_[(oldest_ + i) % spans_.size()];
    const TraceSpan& span = placed.span;
    text += "{\"ph\":\"" + std::string(span.seconds < 0 ? "i\",\"s\":\"t" : "X") +
            "\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(placed.row) +
            ",\"name\":" + quoted(span.label) + ",\"ts\":" + microseconds(span.begin);
    if (span.seconds >= 0) {
      text += ",\"dur\":" + microseconds(span.seconds);
    }
    text += ",\"args\":" + details(span) + "},\n";
  }
  return text;
}

std::string trace_json(const std::vector<const Trace*>& ranks) {
  std::string events;
  int64_t dropped = 0;
  for (const Trace* rank : ranks) {
    events += rank->events();
    dropped += rank->dropped();
  }
  if (!events.empty()) {
    events.resize(events.size() - 2);  // the last comma
  }
  return "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":" + std::to_string(dropped) +
         "},\"traceEvents\":[\n" + events + "\n]}\n";
}

}  // namespace reknit
