#if Demo
import ArgumentParser

/// How the process ends.
///
/// The numbers are promised by --help and the pages in docs/: scripts rely on them.
enum ExitStatus: Equatable {
  /// A step of the job failed: 11 for the first, 12 for the second, and so on.
  case stepFailed(Int)
  /// Some feeds could not be read.
  case someFeedsFailed
  /// None could be.
  case noFeed
  /// A message of the chat was lost, doubled or out of order.
  case notDelivered
  /// Clients of the chat could not connect, or lost their connection.
  case clientsFailed
  /// An order has an effect less or more than one, or a lease two holders.
  case notOnce
  /// A bad argument, which ArgumentParser reports by itself with this number.
  case usage
  /// The site cannot be reached at all, whichever step found out.
  case unreachable
  /// Something that should not happen, said in full.
  case software
  /// The built-in server could not start.
  case noServer
  /// The database could not be opened or written.
  case notStored
  /// The result, or a file on the way to it, could not be written.
  case notWritten
  /// The time given was not enough.
  case timedOut
  /// Ended by a signal, as shells report it: 130 for Ctrl-C.
  case signalled(Int32)

  var code: Int32 {
    switch self {
    case .stepFailed(let number): 10 + Int32(number)
    case .someFeedsFailed: 20
    case .noFeed: 21
    case .notDelivered: 30
    case .clientsFailed: 31
    case .notOnce: 40
    case .usage: 64
    case .unreachable: 69
    case .software: 70
    case .noServer: 71
    case .notStored: 73
    case .notWritten: 74
    case .timedOut: 124
    case .signalled(let signal): 128 + signal
    }
  }
}
#endif
