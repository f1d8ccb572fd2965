#if Demo
import Coroutine

/// 0, 1, 1, 2, 3, 5 … as far as an Int holds them.
///
/// The loop is written as if nobody were asking; it goes on only when somebody does.
func fibonacci() -> Generator<Int, Never, Void> {
  co_sequence { yield in
    var (a, b) = (0, 1)
    while true {
      try yield(a)
      let (sum, isTooLarge) = a.addingReportingOverflow(b)
      (a, b) = (b, sum)
      if isTooLarge { break }
    }
    try yield(a)
  }
}
#endif
