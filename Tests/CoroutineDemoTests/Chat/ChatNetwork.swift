#if Demo
import Coroutine
import CoroutineNet
import Glibc
import Testing

@testable import CoroutineDemo

/// A loopback address that no other test uses, so that no other test is given the port that a listener has left.
func ownLoopback() throws -> SocketAddress {
  let number = ownAddresses.withLock { number in
    number += 1
    return number
  }
  return try .ipv4("127.2.\(number / 250).\(number % 250 + 1)", port: 0)
}

private let ownAddresses = Locked(0)

/// Connects until nobody listens at `address`.
///
/// A listener that closes resets the connections that it has not accepted. A process that another thread forks has a
/// copy of a closed listener until it runs its program, and so long the kernel goes on listening. The suite's limit
/// ends a wait for ever.
func waitUntilRefused(by address: SocketAddress) throws {
  while true {
    do {
      try Connection.connect(to: address).close()
    } catch let error as NetError where error.code == ECONNREFUSED {
      return
    } catch let error as NetError where error.code == ECONNRESET {}
    try co_yield()
  }
}
#endif
