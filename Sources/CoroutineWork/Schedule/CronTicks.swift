#if Postgres
// From the calendar's minutes to real moments. A zone is a function: seconds that its clocks are ahead of UTC at a
// moment.
//
// Two rules, by the hour's field:
// - `*`: ticks are real moments whose reading of the clock matches. An hour that comes twice has ticks twice, one
//   that is skipped has none. Between two changes of the offset the readings are a straight line, so the next match
//   is computed on that line; if the offset at the result is another one, the search continues at the change.
// - Anything else: ticks are readings of the clock. A reading that comes twice means the first moment; one that is
//   skipped means the moment of the change, which is the first minute after it. Several readings may mean the same
//   moment: one tick. A later reading never means an earlier moment, so the first reading that means a moment after
//   `moment` is the next.

struct CronTicks: Sendable {
  let fields: CronFields
  /// Seconds east of UTC, at a moment in seconds since 1970.
  let offset: @Sendable (Int) -> Int

  /// The first tick after `moment`, both in seconds since 1970.
  func next(after moment: Int) -> Int? {
    fields.runsEachHour ? nextReal(after: moment) : nextReading(after: moment)
  }

  private func nextReal(after moment: Int) -> Int? {
    var start = moment + 1
    // Two changes a year, for 40 years, and some.
    for _ in 0..<200 {
      let east = offset(start)
      guard let reading = fields.next(from: -(-(start + east)).quotientRoundedDown(60)) else { return nil }
      let candidate = reading * 60 - east
      guard offset(candidate) != east else { return candidate }
      start = change(after: start, before: candidate)
    }
    return nil
  }

  private func nextReading(after moment: Int) -> Int? {
    // No clock is set by more than a day.
    var reading = (moment + offset(moment) - 86_400).quotientRoundedDown(60)
    for _ in 0..<10_000 {
      guard let match = fields.next(from: reading) else { return nil }
      let candidate = first(at: match * 60)
      if candidate > moment { return candidate }
      reading = match + 1
    }
    return nil
  }

  /// The first moment at which the clocks show `reading`; if they never do, the moment at which they skip it.
  private func first(at reading: Int) -> Int {
    let before = offset(reading - 86_400)
    let after = offset(reading + 86_400)
    let candidates = [reading - before, reading - after].filter { $0 + offset($0) == reading }
    if let first = candidates.min() { return first }
    return change(after: reading - 86_400, before: reading + 86_400)
  }

  /// A moment between the two at which the offset becomes another one than at `start`; there is one.
  private func change(after start: Int, before end: Int) -> Int {
    let east = offset(start)
    var (low, high) = (start, end)
    while high - low > 1 {
      let middle = low + (high - low) / 2
      if offset(middle) == east { low = middle } else { high = middle }
    }
    return high
  }
}
#endif
