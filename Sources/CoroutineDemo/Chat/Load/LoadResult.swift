#if Demo
import Histogram

/// What a load has found.
struct LoadResult: Sendable {
  let plan: LoadPlan
  let failures: [LoadReport]
  let latencies: ChatLoad.Latencies
  /// From the first message to the last delivery.
  let duration: Duration
  private(set) var sent = 0
  private(set) var received = 0
  private(set) var lost = 0
  private(set) var duplicated = 0
  private(set) var reordered = 0

  init(_ plan: LoadPlan, _ reports: [LoadReport], _ latencies: ChatLoad.Latencies, _ duration: Duration) {
    self.plan = plan
    self.latencies = latencies
    self.duration = duration
    failures = reports.filter { $0.failure != nil }
    for report in reports {
      sent += report.sent
      received += report.check.received
      duplicated += report.check.duplicated
      reordered += report.check.reordered
      // A client that was not in its room to the end has lost nothing: its failure is told.
      guard report.isChecked else { continue }
      for sender in plan.members(with: report.number) {
        // The last messages before a sender's connection broke may never have reached the server.
        let sent = reports[sender].isChecked ? reports[sender].sent : 0
        lost += report.check.lost(of: sent, from: sender)
      }
    }
  }

  /// Whether every message has come to every member, once, and in order.
  var isComplete: Bool { lost == 0 && duplicated == 0 && reordered == 0 }
}
#endif
