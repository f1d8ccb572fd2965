#if Demo
import Foundation
import Testing

@testable import CoroutineDemo

@Suite struct `The date of an item` {
  @Test(arguments: [
    ("Sat, 07 Sep 2002 00:00:01 GMT", 1_031_356_801), ("07 Sep 2002 00:00:01 GMT", 1_031_356_801),
    ("Sat,  7 Sep 02 00:00 +0000", 1_031_356_800), ("Sat, 07 Sep 2002 01:00:01 +0100", 1_031_356_801),
    ("Fri, 06 Sep 2002 19:00:01 EST", 1_031_356_801), ("7 September 2002", 1_031_356_800),
    ("Sat, 07-Sep-2002 00:00:01 UT", 1_031_356_801), ("  2003-12-13T18:30:02Z\n", 1_071_340_202),
    ("2003-12-13T18:30:02.25+01:00", 1_071_336_602), ("2003-12-13 18:30:02", 1_071_340_202),
    ("2003-12-13", 1_071_273_600),
    ("2024-02-29T23:59:60-05:00", 1_709_269_200), ("1969-12-31T23:59:59Z", -1),
    ("Thu, 01 Jan 1970 00:00:00 +0530", -19_800),
  ])
  func `is read as it is written`(text: String, seconds: Double) {
    #expect(FeedDate.parse(text) == Date(timeIntervalSince1970: seconds))
  }

  @Test(arguments: [
    "", "yesterday", "Sat", "32 Jan 2002", "07 Foo 2002", "2003-13-01", "2003-12", "Sat, 07 Sep 2002 25:00:00 GMT",
    "99999999999999999999", "07 Sep 99999999999999999999",
  ])
  func `that is invalid is none`(text: String) {
    #expect(FeedDate.parse(text) == nil)
  }
}
#endif
