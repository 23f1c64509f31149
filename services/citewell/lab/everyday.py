"""Sentences that no paper answers, written for this test: a calibrated service must give them low confidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from citewell.lab.dataset import Column, Contexts, Dataset, Rows, TextColumn
from citewell.scholarly.contexts import TARGET

_SENTENCES = """
Boil the pasta in salted water until it is firm to the bite TARGETCIT and drain it well.
The bakery on the corner closes at noon on Saturdays TARGETCIT, so buy the bread early.
Her grandmother planted the roses TARGETCIT along the south wall of the house.
The train to the coast leaves twice a day TARGETCIT and is often late in winter.
He paid the rent in cash TARGETCIT on the first day of every month.
Fold the letter twice and put it into the blue envelope TARGETCIT.
The home team lost three to one TARGETCIT after the rain had stopped.
My neighbour's dog barks at the postman TARGETCIT every single morning.
Stir the soup slowly and add cream, pepper and a little nutmeg TARGETCIT.
The museum is free on Sundays TARGETCIT and closed on Mondays.
She wore a green coat and a hat with a feather TARGETCIT to the wedding.
We drove over the pass in heavy snow TARGETCIT and reached the hotel at night.
The plumber fixed the leaking tap TARGETCIT and sent his bill a week later.
Tickets for the concert were sold out within the hour TARGETCIT.
The tenant must give three months' notice in writing TARGETCIT.
Prune the apple trees in late winter TARGETCIT, before the buds open.
The old ferry crosses the river every half hour TARGETCIT in summer.
Knead the dough for ten minutes TARGETCIT and let it rise under a cloth.
His brother works as a carpenter TARGETCIT in a village near the border.
The children built a castle of sand TARGETCIT and waited for the tide.
A cold front brings showers and wind from the west TARGETCIT on Tuesday.
The waiter spilled red wine TARGETCIT over the white tablecloth.
Please switch off the lights TARGETCIT when you leave the building.
The cat sleeps on the warm roof of the car TARGETCIT all afternoon.
They painted the kitchen yellow TARGETCIT and bought new chairs.
The cyclist broke away on the last climb TARGETCIT and won by a minute.
Wash wool by hand in cool water TARGETCIT and dry it flat.
The mayor opened the new swimming pool TARGETCIT with a short speech.
Two eggs, a cup of flour and a pinch of salt TARGETCIT make the batter.
The lighthouse has been empty TARGETCIT since its keeper moved to the mainland.
Grandfather told us about the flood TARGETCIT that took the old bridge.
The shop sells second-hand bicycles TARGETCIT and repairs them too.
Leave your shoes at the door TARGETCIT and come in.
The orchestra played a waltz TARGETCIT and everybody got up to dance.
Our flight was cancelled TARGETCIT, and we slept on the benches.
Sow the beans when the soil is warm TARGETCIT and water them daily.
The judge adjourned the hearing TARGETCIT until the witness could travel.
Slice the onions thinly and fry them in butter TARGETCIT until golden.
He collects stamps of islands TARGETCIT that no longer print them.
The bus stops in front of the church TARGETCIT next to the fountain.
Rinse the rice until the water runs clear TARGETCIT, then let it drain.
The postman left a parcel with the lady downstairs TARGETCIT.
Our holiday flat looked onto the harbour TARGETCIT and smelled of fish.
She trained all spring for the marathon TARGETCIT and finished in four hours.
The office network was down again TARGETCIT, so everybody went for coffee.
He fell in love with the model on the cover TARGETCIT when he was fifteen.
Pay attention to the step TARGETCIT, the hall is dark.
The children learned the song by heart TARGETCIT and sang it at the fair.
A long queue formed in front of the ice cream shop TARGETCIT.
My aunt knits a scarf for everybody TARGETCIT before Christmas.
The gate to the orchard must be kept shut TARGETCIT because of the sheep.
Bake the cake for forty minutes TARGETCIT and let it cool in the tin.
The lift is out of order TARGETCIT; please take the stairs.
They moved into a house with a leaking roof TARGETCIT and mended it themselves.
The dentist told him to come back in six months TARGETCIT.
Return library books to the desk on the ground floor TARGETCIT.
The river froze in January TARGETCIT and the whole town went skating.
We ate grilled sardines on the terrace TARGETCIT and watched the boats.
The butcher keeps the best sausages for his regular customers TARGETCIT.
Iron the shirts while they are still a little damp TARGETCIT.
The goalkeeper caught the ball TARGETCIT and threw it far up the field.
Their daughter plays the cello TARGETCIT in the youth orchestra.
The taxi driver knew a short cut TARGETCIT through the old market.
Peel the potatoes and keep them in cold water TARGETCIT.
The carpet has to be cleaned twice a year TARGETCIT.
Half the village came to the funeral TARGETCIT of the old teacher.
The swallows return in April TARGETCIT and nest under our eaves.
Do not lean your bicycle against the shop window TARGETCIT.
The hotel serves breakfast from seven to ten TARGETCIT.
He lost his keys in the snow TARGETCIT and found them in March.
The bride's mother cried TARGETCIT all through the ceremony.
Our landlord raised the rent TARGETCIT for the second time this year.
The fishmonger closes early on Mondays TARGETCIT.
Add a spoon of honey and the juice of a lemon TARGETCIT to the tea.
The parrot learned to imitate the telephone TARGETCIT and drove us mad.
Her new glasses make everything look larger TARGETCIT.
The fire brigade pumped out the cellar TARGETCIT after the storm.
I left my umbrella on the bus TARGETCIT again.
The vet said the cat should eat less TARGETCIT.
Our neighbours are building a garage TARGETCIT right at the fence.
The curtain rose twenty minutes late TARGETCIT and nobody minded.
The mountain hut has no running water TARGETCIT and sleeps twelve.
He carved a whistle out of a willow branch TARGETCIT.
The strawberries were sweeter last year TARGETCIT.
The captain ordered everybody below deck TARGETCIT when the wind rose.
You can park behind the supermarket TARGETCIT for two hours.
The tailor shortened the sleeves TARGETCIT while I waited.
The kettle whistles TARGETCIT as soon as the water boils.
She sold the car and bought a horse TARGETCIT.
The new teacher reads to the class TARGETCIT every Friday afternoon.
Whip the cream until it is stiff TARGETCIT and spread it over the fruit.
The clock in the tower is always five minutes slow TARGETCIT.
The farmer brings eggs and milk TARGETCIT on Thursdays.
The wedding cake had four tiers TARGETCIT and leaned to the left.
My feet hurt after the long walk TARGETCIT along the canal.
The hairdresser talked about her divorce TARGETCIT for an hour.
The kitten climbed up the curtain TARGETCIT and could not get down.
The ferry was cancelled because of fog TARGETCIT.
Uncle Peter told the same joke TARGETCIT at every birthday.
The soup needs more salt TARGETCIT and a bay leaf.
They pitched the tent under a chestnut tree TARGETCIT and got wet all the same.
The window on the landing does not close TARGETCIT.
The apples keep until spring TARGETCIT if the cellar is cool.
We missed the last tram TARGETCIT and walked home in the rain.
The referee showed him the red card TARGETCIT before half-time.
The coat is too warm for May TARGETCIT.
He repaired the radio with a hairpin TARGETCIT and a bit of tape.
The bees are restless before a thunderstorm TARGETCIT.
The pub on the square has live music TARGETCIT at weekends.
My grandmother's recipe calls for lard TARGETCIT, but butter will do.
The boys threw stones at the frozen pond TARGETCIT.
The train stood still between two stations TARGETCIT for an hour.
Hang the washing out early TARGETCIT, it will rain at noon.
The nurse changed the bandage TARGETCIT and opened the window.
Her piano is badly out of tune TARGETCIT.
The thief came through the bathroom window TARGETCIT.
The cheese is made from sheep's milk TARGETCIT and ripens in a cave.
The bridge is closed to lorries TARGETCIT until the end of October.
The dog buried my slipper TARGETCIT under the hydrangea.
Our team plays at home TARGETCIT next Sunday.
The moon was so bright TARGETCIT that we needed no torch.
The florist ran out of tulips TARGETCIT on Mother's Day.
He drinks his coffee black TARGETCIT and eats nothing before noon.
The old sofa went to the tip TARGETCIT last week.
The choir rehearses in the parish hall TARGETCIT on Wednesdays.
Cut the grass before you go on holiday TARGETCIT.
The sign on the door says closed for stocktaking TARGETCIT.
The baby sleeps through the night TARGETCIT at last.
The road to the quarry is full of holes TARGETCIT.
She keeps her savings in a biscuit tin TARGETCIT.
The barber on our street retired TARGETCIT and nobody took over.
The picnic was spoiled by wasps TARGETCIT.
Grate the cheese and mix it with the breadcrumbs TARGETCIT.
The dressing gown was a present TARGETCIT from her sister.
The bull broke through the fence TARGETCIT and ran down to the village.
The night watchman makes his round TARGETCIT every two hours.
Season the fish and wrap it in foil TARGETCIT.
The last guests left at three in the morning TARGETCIT.
The chimney sweep brings luck TARGETCIT, they say.
The rehearsal was moved to Tuesday TARGETCIT because the hall was let.
My cousin won a goose TARGETCIT at the shooting match.
The paint must dry overnight TARGETCIT before the second coat.
The swimming lessons start at eight TARGETCIT.
He whistled while he polished the shoes TARGETCIT.
The market moves indoors TARGETCIT from November on.
The puppy chewed the leg of the table TARGETCIT.
The vicar rides a motorcycle TARGETCIT.
Turn left at the petrol station TARGETCIT and go on to the mill.
The jam sets better with a little lemon TARGETCIT.
The audience clapped for ten minutes TARGETCIT after the last song.
The storm took the roof off the stable TARGETCIT.
The twins wear each other's clothes TARGETCIT.
The wine tasted of cork TARGETCIT, so we sent it back.
The school trip goes to the zoo TARGETCIT this year.
Water the tomatoes in the evening TARGETCIT, never at noon.
The inspector stamped our tickets TARGETCIT without a word.
A hedgehog lives under the woodpile TARGETCIT.
The sewing machine belonged to my great-aunt TARGETCIT.
The shop assistant wrapped the vase TARGETCIT in newspaper.
The sunflowers turned out taller than the shed TARGETCIT.
The singer forgot the second verse TARGETCIT and hummed instead.
The beach was covered with seaweed TARGETCIT after the storm.
Our plane landed in the middle of the night TARGETCIT.
The pharmacy next to the town hall is open tonight TARGETCIT.
The skirt must be washed by hand TARGETCIT.
He asked her to dance TARGETCIT and trod on her toes.
The goats got into the lettuce TARGETCIT.
The porter carried our cases to the third floor TARGETCIT.
The clown made the little ones cry TARGETCIT.
The plums are ripe in September TARGETCIT.
The boiler is serviced every autumn TARGETCIT.
The sledge was hidden behind the wardrobe TARGETCIT until Christmas Eve.
Roast the chestnuts over the fire TARGETCIT until they burst.
The grass was still wet TARGETCIT when they put up the chairs.
The hikers met a bear TARGETCIT near the upper lake.
The butter goes into the dough cold TARGETCIT, cut in cubes.
The second-hand coat had a letter in its pocket TARGETCIT.
The mayor's speech was longer than the parade TARGETCIT.
The gulls stole his sandwich TARGETCIT.
The customs officer opened every suitcase TARGETCIT.
The stove must be lit an hour before supper TARGETCIT.
The snowman lasted until Easter TARGETCIT.
The lamp over the stairs flickers TARGETCIT.
The crew slept on the beach TARGETCIT and sailed at dawn.
The plaster has to stay on for six weeks TARGETCIT.
The cheque came back because the date was wrong TARGETCIT.
The donkey would not cross the bridge TARGETCIT.
We bought the bread still warm TARGETCIT and ate half of it on the way.
The janitor waters the plants TARGETCIT during the holidays.
The flea market starts at dawn TARGETCIT.
The jury gave the first prize to a pumpkin TARGETCIT of ninety kilos.
The violinist broke a string TARGETCIT in the slow movement.
The heating comes on at six TARGETCIT.
The cook quit in the middle of the season TARGETCIT.
The tablecloth had belonged to a countess TARGETCIT.
The lost dog was found at the station TARGETCIT.
The waiting room was full of coughing people TARGETCIT.
The pears from this tree are only good for cooking TARGETCIT.
The drawer sticks in damp weather TARGETCIT.
The parade ended at the old fort TARGETCIT with fireworks.
"""


def everyday_sentences() -> list[str]:
    """Sentences with one marker each, none of them about research."""
    sentences = [line.strip() for line in _SENTENCES.strip().splitlines()]
    assert all(sentence.count(TARGET) == 1 for sentence in sentences)
    return sentences


def with_everyday(data: Dataset, sentences: list[str]) -> tuple[Dataset, Rows]:
    """The set with these sentences as contexts of a draft without title, dated today; and their rows.

    The draft is in no split and cites nothing, so nothing else in the set changes. A context needs a cited paper: it is
    the draft itself, which is never a candidate for its own queries.
    """
    papers, contexts = data.papers, data.contexts
    draft, first, count = len(papers), len(contexts), len(sentences)
    latest = int(max(contexts.first_day.max(), papers.last_day.max())) + 1

    def longer(column: Column, *values: int) -> Column:
        return np.append(column, np.array(values, np.int32))

    grown = replace(
        papers,
        ids=TextColumn([*papers.ids, "everyday-draft"]),
        titles=TextColumn([*papers.titles, ""]),
        abstracts=TextColumn([*papers.abstracts, ""]),
        year=longer(papers.year, 0),
        first_day=longer(papers.first_day, 0),
        last_day=longer(papers.last_day, 0),
    )
    asked = Contexts(
        ids=TextColumn([*contexts.ids, *(f"everyday-{number}" for number in range(count))]),
        texts=TextColumn([*contexts.texts, *sentences]),
        citing=longer(contexts.citing, *[draft] * count),
        cited=longer(contexts.cited, *[draft] * count),
        first_day=longer(contexts.first_day, *[latest] * count),
        group=longer(contexts.group, *[0] * count),
        source=longer(contexts.source, *[0] * count),
        sources=contexts.sources,
        split=longer(contexts.split, *[-1] * count),
    )
    return replace(data, papers=grown, contexts=asked), np.arange(first, first + count)
