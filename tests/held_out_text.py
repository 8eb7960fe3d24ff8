"""Beginning of the last chapter of Pride and Prejudice (1813), public domain; no model was trained on it."""

PASSAGE = """\
Happy for all her maternal feelings was the day on which Mrs. Bennet got rid of her two most
deserving daughters. With what delighted pride she afterwards visited Mrs. Bingley, and talked
of Mrs. Darcy, may be guessed. I wish I could say, for the sake of her family, that the
accomplishment of her earnest desire in the establishment of so many of her children produced so
happy an effect as to make her a sensible, amiable, well-informed woman for the rest of her
life; though perhaps it was lucky for her husband, who might not have relished domestic felicity
in so unusual a form, that she still was occasionally nervous and invariably silly.

Mr. Bennet missed his second daughter exceedingly; his affection for her drew him oftener from
home than anything else could do. He delighted in going to Pemberley, especially when he was
least expected.

Mr. Bingley and Jane remained at Netherfield only a twelvemonth. So near a vicinity to her
mother and Meryton relations was not desirable even to _his_ easy temper, or _her_ affectionate
heart. The darling wish of his sisters was then gratified; he bought an estate in a neighbouring
county to Derbyshire, and Jane and Elizabeth, in addition to every other source of happiness,
were within thirty miles of each other.

Kitty, to her very material advantage, spent the chief of her time with her two elder sisters.
In society so superior to what she had generally known, her improvement was great. She was not
of so ungovernable a temper as Lydia; and, removed from the influence of Lydia's example, she
became, by proper attention and management, less irritable, less ignorant, and less insipid.
From the further disadvantage of Lydia's society she was of course carefully kept, and though
Mrs. Wickham frequently invited her to come and stay with her, with the promise of balls and
young men, her father would never consent to her going.

Mary was the only daughter who remained at home; and she was necessarily drawn from the pursuit
of accomplishments by Mrs. Bennet's being quite unable to sit alone. Mary was obliged to mix
more with the world, but she could still moralize over every morning visit; and as she was no
longer mortified by comparisons between her sisters' beauty and her own, it was suspected by her
father that she submitted to the change without much reluctance.

As for Wickham and Lydia, their characters suffered no revolution from the marriage of her
sisters. He bore with philosophy the conviction that Elizabeth must now become acquainted with
whatever of his ingratitude and falsehood had before been unknown to her; and in spite of every
thing, was not wholly without hope that Darcy might yet be prevailed on to make his fortune. The
congratulatory letter which Elizabeth received from Lydia on her marriage, explained to her
that, by his wife at least, if not by himself, such a hope was cherished. The letter was to this
effect:
"""
