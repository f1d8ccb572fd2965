import CoroutineWork

/// The page of the queue's health, which a browser loads anew every two seconds.
enum HealthPage {
  static func html(_ health: Health) -> String {
    let states = WorkState.allCases.map { state in
      let count = health.counts[state.rawValue] ?? 0
      let alarm = state == .discarded && count > 0 ? " class=\"bad\"" : ""
      return "<tr\(alarm)><td>\(state.rawValue)<td class=\"number\">\(count)"
    }
    let givenUp = health.givenUp.map { mail in
      "<tr><td class=\"number\">\(mail.job)<td>\(escaped(mail.order ?? "?"))<td>\(escaped(mail.error))"
    }
    let table =
      "<h2>Given up, the oldest first</h2><table><tr><th>Job<th>Order<th>Last error\(givenUp.joined())</table>"
    return """
      <!doctype html>
      <html lang="en">
      <meta charset="utf-8">
      <meta name="viewport" content="width=device-width">
      <meta http-equiv="refresh" content="2">
      <title>Outbox</title>
      <style>
        :root { color-scheme: light dark } body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 44rem }
        table { border-collapse: collapse; margin: 1rem 0 } td, th { text-align: left; padding: .25rem .8rem .25rem 0 }
        .number { text-align: right; font-variant-numeric: tabular-nums } .good { color: #18794e } .bad { color: #d92d20 }
      </style>
      <h1>Outbox <small class="\(health.isGood ? "good" : "bad")">\(health.isGood ? "in time" : "late")</small></h1>
      <table>\(states.joined())</table>
      <p>The mail that is next has waited for \(seconds(health.oldest)).
      \(health.expired) mails are taken over from workers that have ended.
      The oldest transaction is \(seconds(health.oldestTransaction)) old, and there are \(health.deadRows) dead rows.
      \(givenUp.isEmpty ? "" : table)
      </html>
      """
  }

  private static func seconds(_ value: Double) -> String { "\((value * 10).rounded() / 10) s" }

  private static func escaped(_ text: String) -> String {
    text.replacing("&", with: "&amp;").replacing("<", with: "&lt;").replacing(">", with: "&gt;")
  }
}
