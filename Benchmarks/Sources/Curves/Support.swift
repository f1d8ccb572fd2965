import Coroutine
import Dispatch
import Harness

/// A point of a curve, `series@live`; `body` returns what one operation took.
func measured(
  _ series: String,
  _ live: Int,
  _ operations: Int,
  _ suite: inout Suite,
  _ body: @escaping (Int) throws -> Double
) {
  suite.figures([Figure("\(series)@\(live)")], operations) { [try body($0)] }
}
