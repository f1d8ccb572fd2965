#if Demo
/// Why a feed was not read, or not to its end: a sentence that names it, and two words for the table.
enum FeedFailure: Error, Equatable, CustomStringConvertible {
  case notAnAddress(String)
  case file(String, reason: String)
  case http(HTTPError)
  /// Something else than a feed: `what` says what it is.
  case notAFeed(String, what: String)
  case malformed(String, XMLFailure)
  /// What there is of it is well formed, and ends too early.
  case brokeOff(String, reason: String)
  case timedOut(String, seconds: Double)
  case notStored(String, StoreFailure)
  case interrupted(String)
  /// A mistake in this program, said in full.
  case unforeseen(String, String)

  var description: String {
    switch self {
    case .notAnAddress(let text): "'\(text)' is neither an address that begins with http:// or https:// nor a file"
    case .file(let path, let reason): "\(path) cannot be read: \(reason)"
    case .http(let error): error.description
    case .notAFeed(let name, let what): "\(name) is no feed that can be read: it is \(what)"
    case .malformed(let name, let failure): "\(name) is malformed: \(failure)"
    case .brokeOff(let name, let reason): "\(name) broke off before its end: \(reason)"
    case .timedOut(let name, let seconds): "\(name) was not read within \(seconds.readable) s; give more with --timeout"
    case .notStored(let name, let failure): "\(name) could not be stored: \(failure)"
    case .interrupted(let name): "\(name) was interrupted"
    case .unforeseen(let name, let error): "\(name) failed for a reason not foreseen: \(error)"
    }
  }

  /// For the table, beside the feed's name.
  var brief: String {
    switch self {
    case .notAnAddress: "no address"
    case .file: "cannot be read"
    case .http(.unreachable): "unreachable"
    case .http(.refused(_, let status, _)): "answered \(status)"
    case .http(.malformed): "bad answer"
    case .notAFeed: "no feed"
    case .malformed(_, let failure): "malformed, line \(failure.line)"
    case .brokeOff: "broke off"
    case .timedOut: "timed out"
    case .notStored: "not stored"
    case .interrupted: "interrupted"
    case .unforeseen: "failed"
    }
  }
}

extension Double {
  /// 30, not 30.0; but 0.5.
  var readable: String { self == rounded() && magnitude < 1e15 ? "\(Int(self))" : "\(self)" }
}
#endif
