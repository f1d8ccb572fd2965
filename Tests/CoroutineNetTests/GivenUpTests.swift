import CTestSupport
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Waits for sockets that are given up while the socket lives; GivenUpTests of the library has all other waits.
@Suite("Waits for sockets that are given up", .timeLimit(.minutes(10)))
struct GivenUpTests {
  private struct Form: Sendable {
    let name: String
    let wait: @Sendable () throws -> Void

    init(_ name: String, _ wait: @escaping @Sendable () throws -> Void) { (self.name, self.wait) = (name, wait) }
  }

  private static func forms(_ connection: Connection, _ full: Connection) throws -> [Form] {
    let listener = try Listener.bind(.loopback(port: 0))
    let socket = try DatagramSocket.bind(.loopback(port: 0))
    return [
      Form("read(upTo:)") { _ = try connection.read(upTo: 1) },
      Form("read(into:)") {
        try withUnsafeTemporaryAllocation(byteCount: 8, alignment: 1) { buffer in
          _ = try connection.read(into: UnsafeMutableRawBufferPointer(buffer))
        }
      },
      Form("readLine") {
        var reader = BufferedReader(connection)
        _ = try reader.readLine()
      },
      Form("a select of a connection") { try co_select { connection.onReadable {} } },
      Form("write") { try full.write([1]) },
      Form("accept") { _ = try listener.accept() },
      Form("a select of a listener") { try co_select { listener.onAccept { _ in } } },
      Form("a datagram") {
        try withUnsafeTemporaryAllocation(byteCount: 8, alignment: 1) { buffer in
          _ = try socket.receive(into: UnsafeMutableRawBufferPointer(buffer))
        }
      },
    ]
  }

  /// Gives a form up `rounds` times, and returns the heap's growth for each.
  private static func grown(_ form: Form, _ rounds: Int, byDeadline: Bool) throws -> Int {
    let before = Int(cts_heap_bytes())
    for _ in 0..<rounds {
      if byDeadline {
        _ = try? co_timeout(.nanoseconds(1)) { try form.wait() }
      } else {
        let waiter = co_launch(start: .immediate) { try? form.wait() }
        waiter.cancel()
        try waiter.join()
      }
    }
    return (Int(cts_heap_bytes()) - before) / rounds
  }

  // In a process of its own, because other tests use the heap.
  @Test func `leave nothing behind`() async {
    await #expect(processExitsWith: .success) {
      // They are kept until the end of a test.
      cts_note_throws(false)
      let grown = try await onCoroutine {
        let (pair, full) = (try TCPPair(), try Connection.pair())
        _ = try full.0.fill()
        var grown: [String] = []
        for form in try Self.forms(pair.client, full.0) {
          for byDeadline in [false, true] {
            // The first rounds fill pools and caches.
            _ = try Self.grown(form, 500, byDeadline: byDeadline)
            let bytes = try Self.grown(form, 2_000, byDeadline: byDeadline)
            // What is left behind is a block each time, and the least block has 32 bytes. Less is a pool that grew.
            if bytes >= 32 { grown.append("\(form.name), \(byDeadline ? "deadline" : "cancelled"): \(bytes) bytes") }
          }
        }
        withExtendedLifetime((pair, full)) {}
        return grown
      }
      cts_note_throws(true)
      #expect(grown == [], "\(grown)")
    }
  }
}
