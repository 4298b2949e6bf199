// The built-in prompts of a load test: see prompts.h. Neighbours differ in kind and length, so that
// a short test sees some of each.
#include "launcher/loadtest/prompts.h"

namespace outrider {

const std::vector<std::string>& builtin_prompts() {
  static const std::vector<std::string> prompts = {
      "Why does bread rise, and why does it sometimes fail to?",

      R"(Write a Python function that returns the longest run of equal values in a list, together
with the position at which the run begins. Add a short docstring and two examples.)",

      R"(Summarise this in one sentence: The town's library will close its reading room for six
weeks from the first of March. Heating pipes laid in 1962 have begun to leak into the cellar where
newspapers are kept. Books can still be ordered and collected at the side entrance, and the children's
hour moves to the school across the street.)",

      R"(The lighthouse keeper had not spoken to anyone for eleven days when the boat came round the
point. He put down the lamp glass that he was polishing, went to the window, and)",

      "Give me five names for a small grey cat.",

      R"(Here is the record of a meeting. List what was decided, who does it, and by when.

Anna opened by saying that the old booking system would be switched off at the end of June, whatever
happened. Jonas reported that about a third of the customers had moved to the new one without being
asked, and that most of the rest had never logged in since the letter in January. He thought that a
second letter would do little. Miriam asked whether somebody could simply telephone the two hundred
largest customers; she had done so for the last change, and it had taken four people nine days. Anna
said that this was worth it, and that Miriam should choose the people and begin on the second of May.

The next point was the export of invoices. Tarek had found that invoices with more than ninety-nine
lines lose their last page when they are exported as a table. Nobody had complained yet, but the tax
office accepts only whole invoices. He has a fix, which needs a day of testing. Jonas offered his test
data. They agreed that the fix must be in before the next monthly close, which is on the twenty-eighth
of April, and that Tarek tells the accountants once it is.

There was some discussion about the printed handbook. Sales would like five hundred copies for the fair
in September; Miriam pointed out that the last edition was out of date before it was bound. Anna
suggested a single sheet with a link instead, and nobody objected strongly. Lena will draft the sheet by
the end of May, and bring two quotes from printers. The question of who pays for it was left open until
Lena has the quotes.

Finally Jonas reminded everyone that the office will be without power on the Saturday after next,
from seven in the morning until about three. Servers in the cellar have to be shut down on Friday evening.
Tarek volunteered, and will write down the order in which they have to come up again, since the last time
the telephone system started before the directory and nobody could be called until Tuesday.)",

      "Translate into French, Spanish and German: \"The next train leaves from platform four.\"",

      R"(What is wrong with this function, and how would you mend it?

int average(const int* values, int count) {
  int sum;
  for (int i = 0; i <= count; i++) sum += values[i];
  return sum / count;
})",

      "Explain to a child of eight why the moon seems to follow the car.",

      R"(Continue this list with ten more of the kind, one a line:
apple - fruit
carrot - vegetable
salmon - fish
thyme - herb)",

      R"(I have two job offers. One is close to home, pays a little less than I earn now, and the
people seemed kind. The other is in a city three hours away, pays half as much again, and would mean
learning a field that I know nothing about. I am forty-one, my children are six and nine, and my wife
could work from anywhere. Which questions should I ask myself before I decide?)",

      "Write a SQL query: the three best-paid employees of each department, from a table "
      "employees(name, department, salary).",

      R"(Summarise the following text in three bullet points.

Sourdough is a way of raising bread without bought yeast. Flour and water, left to stand, collect the
yeasts and bacteria that live on the grain and in the air; fed each day with more flour and water, they
settle after a week or two into a stable company. The yeasts make the gas that lifts the dough. The
bacteria make acids, which give the taste, keep mould away for days, and tighten the gluten so that a
loose dough can be shaped at all. Since the company is different in every kitchen, so is the bread. A
starter that is kept warm and wet grows mild and milky; one that is kept cool and stiff grows sharp. A
baker who goes on holiday can dry a spoonful on paper, and wake it with water a year later.)",

      "It was the kind of winter in which even the river gave up, and",

      "What should I cook tonight from lentils, two onions, a lemon and half a cabbage?",

      R"(Rewrite this class so that it can be used from several threads, and say what you changed:

class Counter:
    def __init__(self):
        self.counts = {}

    def add(self, name, amount=1):
        if name not in self.counts:
            self.counts[name] = 0
        self.counts[name] += amount

    def top(self, n):
        ranked = sorted(self.counts.items(), key=lambda pair: -pair[1])
        return ranked[:n]

    def reset(self):
        old = self.counts
        self.counts = {}
        return old)",

      R"(Write a friendly but firm letter to a neighbour whose dog barks every night between two and
four in the morning. You have spoken to him once already. You like the dog.)",

      "Hi!",

      R"(Read the report and answer: which of the three bridges should be repaired first, and why?

Report on the bridges of the lower valley.

The mill bridge is the oldest, built of stone in three arches. Its carriageway is four metres wide, so
that a lorry and a bicycle cannot pass each other. The arches are sound. The parapet on the upstream
side leans outwards by eleven centimetres over a length of six metres, and loose stones have been found in
the stream below. Some nine hundred vehicles cross on a working day, nearly all of them between the
village and the main road. The way round, by the new road, is four kilometres longer.

The station bridge is of steel, built in 1931 and painted for the last time in 1988. Rust has
reached the lower flange of both main girders; measured over their length, they have lost between four and
nine percent of their thickness, and at two places near the eastern bearing almost a fifth. The bearings
themselves can no longer move, so that on hot days the girders push against the abutment, which shows a
crack of three millimetres. The bridge carries two thousand six hundred vehicles a day, among them the
school buses. Its limit was lowered from thirty to sixteen tonnes last year. The fire engine, at fourteen
tonnes, may still cross; the new one, which is ordered for next spring, weighs eighteen. The only way round
leads through the next town and takes twenty-five minutes.

The meadow bridge was built of concrete in 1974. Salt water has come through the joints, and at the
edges the concrete has fallen off the outer bars of the reinforcement over about twelve metres. Samples
show that salt has not come near the main bars yet. Some three hundred vehicles a day use it, most of them
farmers'. If the joints are sealed within two years, the bridge will last another thirty; if they are not,
the whole deck will have to be replaced within ten, at six times the cost.

The council has money for one large repair this year, and for one small repair every year. Sealing the
joints of the meadow bridge counts as small, as does straightening a parapet. Girders and bearings of the
station bridge count as large.)",

      "Name the planets in order of size, largest first, with a word about each.",

      R"(#include <vector>

// Returns the indices of all local maxima of `values`: elements that are larger than both of their
// neighbours. The first and the last element count if they are larger than their only neighbour.
std::vector<int> local_maxima(const std::vector<double>& values) {)",

      R"(Once a year, in the week before the harvest, the people of the hill villages carry their
chairs down to the river and sit with their backs to the water. Nobody remembers how the custom began. The
schoolteacher, who came from the coast, asked the oldest woman about it, and was told)",

      "Compare renting a flat and buying one, in a table with advantages and drawbacks of each.",

      "Turn this into polite English: \"your report is late again and half the numbers are wrong\"",

      R"(Make a shell command that finds all files larger than 100 MB below the current directory which
nobody has changed for a year, and prints their sizes and names, the largest first.)",

      R"(Draw up a training plan for someone who can run two kilometres today and wants to run ten in
three months. Three runs a week, one of them slow. Say what to do after a week of illness.)",

      R"(Question: A cyclist rides 18 kilometres against the wind in an hour and a half, and back with the
wind in an hour. How fast is the wind, and how fast would she be without any? Work it out step by step.)",

      R"({"name": "Ida", "age": 34, "languages": ["Danish", "English"], "city": "Aarhus"}
Write ten more such records, one a line, with other names, ages, languages and cities.)",

      R"(Correct the spelling and grammar of this text, and change nothing else: Their was a time when
everbody in the street new each other by there first name. Now days you can live next to someone for ten
year's without to ever speak with them. Me and my sister has tryed to change this, by puting a table and
some bench's infront of our house on the first sunday of every month. At first noone came. Then the old man
from number twelf brang a cake, and since than their has never been less then twenty people.)",

      "What do you call the fear of long words? Answer in one word, then explain it.",

      R"(Write the beginning of a detective story that takes place in a botanical garden, in which the
detective is the gardener, the victim is a plant, and nobody is lying.)",

      "def fibonacci(n):",
  };
  return prompts;
}

}  // namespace outrider
