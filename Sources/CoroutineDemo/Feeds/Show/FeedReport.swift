#if Demo
/// How the reading of one feed ended, or how far it is.
struct FeedReport: Equatable, Sendable {
  enum Outcome: Equatable, Sendable {
    case underWay
    case read
    /// The site still has the version that is stored.
    case unchanged
    case failed(FeedFailure)
  }

  /// As it was asked for.
  var name: String
  var title = ""
  var items = 0
  var new = 0
  var bytes = 0
  /// How many bytes there will be, where that is known.
  var expectedBytes: Int?
  var duration = Duration.zero
  var outcome = Outcome.underWay

  var failure: FeedFailure? {
    if case .failed(let failure) = outcome { failure } else { nil }
  }

  /// The last part of an address or path, which is what tells one from the other.
  var shortName: String {
    let parts = name.split(separator: "/").suffix(1)
    return parts.isEmpty ? name : String(parts[parts.startIndex])
  }
}

extension Int {
  /// "812 B", "20.1 MB".
  var readableBytes: String {
    if self < 1_000 { return "\(self) B" }
    if self < 1_000_000 { return "\((self + 500) / 1_000) kB" }
    let tenths = (self + 50_000) / 100_000
    return "\(tenths / 10).\(tenths % 10) MB"
  }
}
#endif
