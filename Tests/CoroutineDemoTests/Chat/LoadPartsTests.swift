#if Demo
import Foundation
import Histogram
import Testing

@testable import CoroutineDemo

@Suite struct `The check of deliveries` {
  private func check(_ numbers: [Int]) -> DeliveryCheck {
    var check = DeliveryCheck()
    for number in numbers { check.take(number, from: 1) }
    return check
  }

  @Test func `finds nothing where nothing is wrong`() {
    let found = check([0, 1, 2, 3])
    #expect((found.received, found.duplicated, found.reordered) == (4, 0, 0))
    #expect(found.lost(of: 4, from: 1) == 0)
    #expect(found.lost(of: 0, from: 2) == 0)
  }

  @Test func `finds what is lost, in the middle and at the end`() {
    #expect(check([0, 2, 3]).lost(of: 4, from: 1) == 1)
    #expect(check([0, 1]).lost(of: 4, from: 1) == 2)
    #expect(check([1]).lost(of: 4, from: 1) == 3)
    #expect(check([]).lost(of: 4, from: 2) == 4)
  }

  @Test func `finds what came twice`() {
    let found = check([0, 1, 1, 0, 2])
    #expect((found.received, found.duplicated, found.reordered) == (3, 2, 0))
    #expect(found.lost(of: 3, from: 1) == 0)
  }

  @Test func `finds what came late, which is not lost`() {
    let found = check([0, 2, 1, 3, 1])
    #expect((found.received, found.duplicated, found.reordered) == (4, 1, 1))
    #expect(found.lost(of: 4, from: 1) == 0)
  }

  @Test func `senders do not mix`() {
    var found = DeliveryCheck()
    for (number, sender) in [(0, 1), (0, 2), (1, 2), (1, 1)] { found.take(number, from: sender) }
    #expect((found.received, found.duplicated, found.reordered) == (4, 0, 0))
  }

  @Test func `a result adds up what all have found`() {
    var plan = LoadPlan()
    (plan.clients, plan.messages, plan.roomSize) = (2, 2, 2)
    var reports = (0..<2).map { LoadReport(number: $0, sent: 2, isChecked: true) }
    for (number, sender) in [(0, 0), (1, 0), (0, 1), (1, 1)] { reports[0].check.take(number, from: sender) }
    for (number, sender) in [(0, 0), (0, 0), (1, 1), (0, 1)] { reports[1].check.take(number, from: sender) }
    let histogram = ChatLoad.Latencies(lowestDiscernibleValue: 1, highestTrackableValue: 60_000_000)
    let result = LoadResult(plan, reports, histogram, .seconds(1))
    #expect((result.sent, result.received) == (4, 7))
    #expect((result.lost, result.duplicated, result.reordered) == (1, 1, 1))
    #expect(!result.isComplete)
    // A failure after the exchange does not hide what was lost in it.
    reports[1].failure = .lostConnection("the server does not close it")
    let failed = LoadResult(plan, reports, histogram, .seconds(1))
    #expect((failed.lost, failed.failures.count) == (1, 1))
    #expect(!failed.isComplete)
    // A client that was not in its room to the end has lost nothing: its failure is told. What it has sent last may
    // never have reached the server. A gap before what did come is a loss.
    reports[1].isChecked = false
    reports[1].sent = 5
    #expect(LoadResult(plan, reports, histogram, .seconds(1)).lost == 0)
    reports[0].check.take(3, from: 1)
    #expect(LoadResult(plan, reports, histogram, .seconds(1)).lost == 1)
  }
}

@Suite struct `The parts of the load` {
  @Test func `a message is read as it was written, and nothing else is one`() {
    let message = LoadMessage(sender: 12, number: 3, sent: 456)
    #expect(message.text == "load 3 456")
    #expect(LoadMessage(line: "c12: load 3 456") == message)
    for line in [
      "", "* c12 has joined load-1.", "c12: load 3", "c12: load 3 4 5", "bob: load 3 4", "c: load 3 4", "c12 load 3 4",
      "! no-room x", "cx: load 3 4",
    ] {
      #expect(LoadMessage(line: line) == nil, "\(line)")
    }
  }

  @Test func `rooms have their size, and the last one what is left`() {
    var plan = LoadPlan()
    (plan.clients, plan.messages, plan.roomSize) = (25, 3, 10)
    #expect(plan.members(with: 9) == 0..<10)
    #expect(plan.members(with: 10) == 10..<20)
    #expect(plan.members(with: 24) == 20..<25)
    #expect(plan.deliveries == (100 + 100 + 25) * 3)
  }

  @Test func `the server of a load sends no client away that waits for the others`() {
    var plan = LoadPlan()
    #expect(plan.retry.attempts == 5)
    #expect(plan.serverOptions.idle >= 86_400 && plan.serverOptions.backlog == ChatOptions().backlog)
    (plan.clients, plan.roomSize, plan.window, plan.timeout) = (7, 1_000, 100, .seconds(86_400))
    let options = plan.serverOptions
    #expect(options.limit == 7 && options.backlog == 200_000)
    #expect(options.idle > 2 * 86_400)
  }

  @Test(
    arguments: [
      ("127.0.0.1:7000", "127.0.0.1", 7000), ("[::1]:7", "::1", 7), ("example.org:65535", "example.org", 65_535),
    ] as [(String, String, UInt16)]
  )
  func `an address has a host and a port`(text: String, host: String, port: UInt16) throws {
    let address = try #require(HostAndPort(text))
    #expect((address.host, address.port) == (host, port))
  }

  @Test(arguments: ["", "host", ":7", "host:", "host:0", "host:65536", "host:-1", "::1:7", "[]:7"])
  func `what is no address is refused`(text: String) { #expect(HostAndPort(text) == nil) }

  @Test func `progress says how many are connected, then how much is delivered`() {
    #expect(
      LoadDisplay.text(3, of: 1_200, 0, 0, of: 50, isLive: true) == "3 of 1,200 clients connected"
    )
    #expect(
      LoadDisplay.text(3, of: 12, 7, 0, of: 50, isLive: false) == "3 of 12 clients connected after 7 retries"
    )
    #expect(LoadDisplay.text(12, of: 12, 0, 25, of: 50, isLive: false) == "25 of 50 deliveries (50 %)")
    #expect(
      LoadDisplay.text(12, of: 12, 0, 25, of: 50, isLive: true)
        == "━━━━━━━━━━━━━━━───────────────  25 of 50 deliveries (50 %)"
    )
  }
}

@Suite struct `The plot of latencies` {
  private func latencies(_ values: [UInt64]) -> ChatLoad.Latencies {
    var latencies = ChatLoad.Latencies(lowestDiscernibleValue: 1, highestTrackableValue: 60_000_000)
    for value in values { latencies.record(value) }
    return latencies
  }

  @Test func `rises with the percentile, and names both axes`() throws {
    let plot = LatencyPlot(latencies: latencies((1...10_000).map { $0 * 10 }))
    let lines = plot.lines(columns: 80)
    #expect(lines.count == LatencyPlot.height + 2)
    #expect(lines.first?.hasPrefix("  100 ms │") == true)
    #expect(lines[LatencyPlot.height - 1].hasPrefix("   10 ms │"))
    for name in ["50 %", "90 %", "99 %", "99.9 %"] { #expect(lines.last?.contains(name) == true) }
    // No column is lower than the one to its left.
    let cells = lines.prefix(LatencyPlot.height).map { Array($0.drop { $0 != "│" }.dropFirst()) }
    let blocks = Array(" ▁▂▃▄▅▆▇█")
    let heights = cells[0].indices.map { column in
      cells.reduce(0) { $0 + (blocks.firstIndex(of: $1[column]) ?? 0) }
    }
    #expect(heights == heights.sorted())
    #expect(heights.last! > heights[0])
  }

  @Test(arguments: [20, 40, 79, 200])
  func `no line is wider than the terminal`(columns: Int) {
    for values in [[1], [1, 1_000_000], Array(1...200_000)] as [[UInt64]] {
      for line in LatencyPlot(latencies: latencies(values)).lines(columns: columns) { #expect(line.count <= columns) }
    }
  }

  @Test func `of nothing has no lines`() { #expect(LatencyPlot(latencies: latencies([])).lines(columns: 80).isEmpty) }

  @Test func `of one value has a mark in every column`() {
    let lines = LatencyPlot(latencies: latencies([1_000])).lines(columns: 80)
    let lowest = lines[LatencyPlot.height - 1].drop { $0 != "│" }.dropFirst()
    #expect(!lowest.isEmpty && lowest.allSatisfy { $0 != " " })
  }

  @Test func `times are short`() {
    let times = [7, 999, 1_234, 12_345, 1_500_000].map { LatencyPlot.text($0) }
    #expect(times == ["7 µs", "999 µs", "1.2 ms", "12 ms", "1.5 s"])
    #expect([0, 999, 1_000, 1_234_567, -1_234].map(\.grouped) == ["0", "999", "1,000", "1,234,567", "-1,234"])
  }
}
#endif
