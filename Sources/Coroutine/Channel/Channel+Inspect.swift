// The description of a channel, for dumps.

extension Channel: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { lockAddress }

  func inspect(_ names: JobNames) -> String {
    let (count, limit) = lock.known.withLock { (state.ring.count, state.limit) }
    return switch limit {
    case 0: "\(identity), rendezvous"
    case .max: "\(identity), \(count) values buffered"
    default: "\(identity), \(count) of \(limit) values buffered"
    }
  }

  func verb(of queue: UInt?) -> String { queue == UInt(bitPattern: senders) ? "send to" : "receive from" }
}
