#if Demo
/// What the readers tell the display, each about the feed of that index.
struct FeedNews: Sendable {
  enum Event: Sendable {
    case began
    case progressed
    case ended
  }

  var index: Int
  var event: Event
  /// How things stand with it.
  var report: FeedReport
}
#endif
