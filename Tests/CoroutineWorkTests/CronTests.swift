#if Postgres
import Foundation
import Testing

@testable import CoroutineWork

@Suite("Times of schedules")
struct CronTests {
  private func date(_ text: String) -> Date {
    guard let date = try? Date(text, strategy: .iso8601) else { preconditionFailure("\(text) is no date") }
    return date
  }

  /// The first ticks, as texts in UTC.
  private func ticks(_ fields: String, in zone: String = "Europe/Berlin", from: String, _ count: Int) throws -> [String]
  {
    try WorkSchedule.cron(fields, in: zone).ticks(from: date(from), count: count).map { $0.formatted(.iso8601) }
  }

  @Test func `a time that the change to summer time skips runs at the first minute after it`() throws {
    // Berlin skips 02:00 to 03:00 on 29 March 2026; 03:00 in summer is 01:00 UTC.
    #expect(
      try ticks("30 2 * * *", from: "2026-03-28T00:00:00Z", 3)
        == ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    )
    // Two skipped times, and the time after them, are one tick.
    #expect(
      try ticks("0,30 2,3 29 3 *", from: "2026-03-29T00:00:00Z", 2) == ["2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
    )
  }

  @Test func `a time that comes twice runs once, at the first`() throws {
    // Berlin has 02:00 to 03:00 twice on 25 October 2026: 00:00 and 01:00 UTC.
    #expect(
      try ticks("30 2 * * *", from: "2026-10-24T12:00:00Z", 2) == ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    )
    // Asked between the two.
    #expect(try ticks("30 2 * * *", from: "2026-10-25T00:45:00Z", 1) == ["2026-10-26T01:30:00Z"])
  }

  @Test func `every hour is each real hour, over both changes`() throws {
    #expect(
      try ticks("15 * * * *", from: "2026-03-29T00:00:00Z", 4)
        == ["2026-03-29T00:15:00Z", "2026-03-29T01:15:00Z", "2026-03-29T02:15:00Z", "2026-03-29T03:15:00Z"]
    )
    #expect(
      try ticks("15 * * * *", from: "2026-10-25T00:00:00Z", 3)
        == ["2026-10-25T00:15:00Z", "2026-10-25T01:15:00Z", "2026-10-25T02:15:00Z"]
    )
    // Half an hour of change: Lord Howe Island goes from +11 to +10:30 on 5 April 2026 at 02:00, 15:00 UTC.
    let hours = try WorkSchedule.cron("0 * * * *", in: "Australia/Lord_Howe").ticks(
      from: date("2026-04-04T13:30:00Z"),
      count: 3
    )
    #expect(
      hours.map { $0.formatted(.iso8601) } == ["2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z", "2026-04-04T16:30:00Z"]
    )
  }

  @Test func `a year of daily ticks has each day once, in zones with and without summer time`() throws {
    for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kolkata"] {
      let days = try WorkSchedule.cron("30 2 * * *", in: zone).ticks(from: date("2026-01-01T12:00:00Z"), count: 366)
      #expect(days.count == 366)
      for (one, next) in zip(days, days.dropFirst()) {
        let hours = next.timeIntervalSince(one) / 3_600
        #expect(hours >= 22.5 && hours <= 25.5, "\(zone): \(one) to \(next)")
      }
    }
  }

  @Test func `lists, ranges, steps, names and both kinds of days are those of cron`() throws {
    let from = "2026-01-01T00:00:00Z"
    #expect(
      try ticks("*/20 8-9 * * *", in: "UTC", from: from, 4)
        == ["2026-01-01T08:00:00Z", "2026-01-01T08:20:00Z", "2026-01-01T08:40:00Z", "2026-01-01T09:00:00Z"]
    )
    #expect(try ticks("0 0 * * mon", in: "UTC", from: from, 2) == ["2026-01-05T00:00:00Z", "2026-01-12T00:00:00Z"])
    #expect(try ticks("0 0 * * 7", in: "UTC", from: from, 1) == ["2026-01-04T00:00:00Z"])
    // The 13th, or a Friday.
    #expect(
      try ticks("0 0 13 * fri", in: "UTC", from: from, 3)
        == ["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z"]
    )
    #expect(try ticks("0 0 29 feb *", in: "UTC", from: from, 2) == ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"])
    #expect(try ticks("50/5 0 * * *", in: "UTC", from: from, 2) == ["2026-01-01T00:50:00Z", "2026-01-01T00:55:00Z"])
  }

  @Test(arguments: [
    "", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *",
    "*/0 * * * *", "a * * * *", "1,,2 * * * *", "+1 * * * *", "1- * * * *", "0 0 31 2 *", "0 0 31 apr *",
  ])
  func `a text that has no tick is refused`(_ text: String) {
    #expect(throws: WorkScheduleError.self) { try WorkSchedule.cron(text) }
  }

  @Test func `an unknown time zone is refused`() {
    #expect(throws: WorkScheduleError.self) { try WorkSchedule.cron("* * * * *", in: "Europe/Atlantis") }
  }

  @Test(
    arguments: [
      .nan, .infinity, 1e19, 1e18, 1e15, 9e14, 1e12, 0, -1e12, -1e15, -1e18, -1e19, -.infinity,
    ] as [Double]
  )
  func `any date has its next ticks or none, and no rule of a schedule counts too far`(seconds: Double) throws {
    let schedules =
      try [
        .every(.seconds(1)), .every(.seconds(Int64.max)), .cron("* * * * *"), .cron("0 3 * * *", in: "Europe/Berlin"),
        .cron("*/5 * * * *", in: "Europe/Berlin"), .cron("0 0 29 2 *"), .cron("30 2 29 2 mon", in: "America/New_York"),
      ] as [WorkSchedule]
    for schedule in schedules {
      let ticks = schedule.ticks(from: Date(timeIntervalSince1970: seconds), count: 2).map(\.timeIntervalSince1970)
      #expect(ticks.count == (seconds < 1e15 ? 2 : 0), "\(schedule.rule): \(ticks)")
      #expect(ticks.allSatisfy { $0 >= seconds } && ticks == ticks.sorted(), "\(schedule.rule): \(ticks)")
    }
  }

  @Test func `a period has its ticks since 1970`() {
    let ticks = WorkSchedule.every(.seconds(90)).ticks(from: date("1970-01-01T00:01:00Z"), count: 2)
    #expect(ticks.map(\.timeIntervalSince1970) == [90, 180])
    #expect(
      WorkSchedule.every(.seconds(1)).ticks(from: Date(timeIntervalSince1970: 7), count: 1)[0].timeIntervalSince1970
        == 7
    )
  }
}
#endif
