#if Postgres
import Coroutine
import CoroutineNet

// The waits for the socket, which is registered with the kernel once.
//
// libpq does not read until it would block, so after a read the socket may have more. A wait therefore polls, unless
// `settle` has said that nothing more is needed:
//
//   a statement is sent --> wait: no system call --event--> recv --last result--> settle
//
// `settle` after the last result is right, although libpq has not seen EAGAIN. Its last read was shorter than its
// buffer, or has left what the server says by itself between two statements. Nothing waits for that: the next wait is
// for the answer to the next statement, which comes later and has an event. The end of the connection comes once, and
// may come before the last result is read. The next statement waits for it, after the server's last sentence. So
// readiness stays if the server has closed. The listener does wait for what the server says by itself, and does not
// settle.

extension Wire {
  /// Suspends until there may be input.
  func untilReadable() throws { try wait(for: .readable) }

  /// Suspends until there may be room for output, or input: the server may wait for us to read before it reads.
  func untilWritable() throws { try wait(for: [.readable, .writable]) }

  private func wait(for readiness: ForeignDescriptor.Readiness) throws {
    guard let watch else { throw lost() }
    do { try watch.wait(for: readiness) } catch let error as NetError {
      isBroken = true
      throw PostgresError(.lost, "\(error)")
    }
  }

  /// Says that the server owes nothing: the next wait is for the answer to what is sent next.
  func settle() { watch?.settle(.readable, afterShortRead: true) }
}
#endif
