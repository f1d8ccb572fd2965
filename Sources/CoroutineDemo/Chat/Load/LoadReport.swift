#if Demo
import CoroutineNet

/// Why a client could not do its part.
enum LoadFailure: Error, Equatable, CustomStringConvertible {
  case notConnected(NetError)
  case connectingTimedOut
  case refused(String)
  /// The connection ended in the middle.
  case lostConnection(String)

  var description: String {
    switch self {
    case .notConnected(let error): "\(error)"
    case .connectingTimedOut: "the server accepts no connection; check the address, and whether it has room"
    case .refused(let line): "the server answered: \(line)"
    case .lostConnection(let reason): "the connection ended too early: \(reason)"
    }
  }
}

/// What one client has sent and received.
struct LoadReport: Sendable {
  var number: Int
  /// The messages that were completely written.
  var sent = 0
  var check = DeliveryCheck()
  /// Whether the client was in its room until all messages had come, or none came any more: those that it has not
  /// received are lost, whatever fails afterwards.
  var isChecked = false
  var failure: LoadFailure?
}
#endif
