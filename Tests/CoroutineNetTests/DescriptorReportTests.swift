import Testing

@testable import Coroutine
@testable import CoroutineNet

@Suite("The report of open descriptors", .timeLimit(.minutes(10)))
struct DescriptorReportTests {
  @Test func `a connection is listed with its peer, its opener, its idle time and who waits, until it is closed`()
    async
  {
    // Alone: the report shows the first few of those that coroutines of one site have opened.
    await #expect(processExitsWith: .success) {
      try await onCoroutine {
        let listener = try Listener.bind(.loopback(port: 0))
        let port = try #require(listener.address.port)
        let opener = co_launch(name: "opens and forgets") { try Connection.connect(to: listener.address) }
        let server = try listener.accept()
        let client = try opener.join()
        let reader = co_launch(name: "reads on") { try server.read(upTo: 1) }
        while !CoroutineRuntime.dump(.descriptors).contains("#\(reader.id) \"reads on\" waits for it") {
          try co_yield()
        }
        func line() -> Substring? {
          CoroutineRuntime.dump(.descriptors).split(separator: "\n").first { $0.contains(" tcp 127.0.0.1:\(port), ") }
        }
        let report = CoroutineRuntime.dump(.descriptors)
        let text = line() ?? ""
        #expect(
          text.contains(
            #/^  \d+ tcp 127.0.0.1:\d+, opened \d+ m?s ago by #\d+, which has ended, idle for \d+ m?s, no coroutine waits for it$/#
          ),
          "\(report)"
        )
        #expect(text.contains("by #\(opener.id),"), "\(report)")
        #expect(
          report.contains("tcp \(client.localAddress), ") && report.contains("#\(reader.id) \"reads on\" waits for it"),
          "\(report)"
        )
        #expect(report.contains(" tcp at 127.0.0.1:\(port), opened"), "\(report)")
        #expect(
          report.contains(
            #/\n\d+ opened by coroutines launched at CoroutineNetTests\/DescriptorReportTests.swift:\d+, no coroutine waits for \d+, idle for up to /#
          ),
          "\(report)"
        )
        client.close()
        #expect(line() == nil)
        _ = try reader.join()
        server.close()
        listener.close()
      }
    }
  }
}
