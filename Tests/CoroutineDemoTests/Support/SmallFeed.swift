#if Demo
/// An RSS feed with a given number of items.
enum SmallFeed {
  static func text(_ title: String, items: Range<Int>, padding: Int = 0) -> String {
    beginning(title) + items.map { item(title, $0, padding: padding) }.joined() + "</channel></rss>"
  }

  static func beginning(_ title: String) -> String {
    "<?xml version=\"1.0\"?><rss version=\"2.0\"><channel><title>\(title)</title>"
  }

  static func item(_ feed: String, _ number: Int, padding: Int = 0) -> String {
    """
    <item><title>\(feed) \(number)</title><guid isPermaLink="false">\(number)</guid>\
    <description>\(String(repeating: "padding ", count: padding / 8))</description></item>

    """
  }
}
#endif
